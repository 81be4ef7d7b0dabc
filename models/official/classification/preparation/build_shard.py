"""Builds one shard of labelled images, a function of its inputs that leaves one finished file."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cv2

from tpudet.classification.data.record import encode_example, encode_slice
from tpudet.classification.preparation.dicom import (
    DicomError,
    Scan,
    frame_names,
    read_scan,
)
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import open_bytes
from tpudet.trainkit.images.standardize import (
    ImageError,
    StandardImage,
    decode_rgb,
    standardize,
)
from tpudet.trainkit.records import write_shard

# Increase it whenever equal inputs give other bytes, so that finished files count as outdated.
FORMAT_VERSION = 3
_JPEG_QUALITY = 95


class ShardJob(NamedTuple):
    """Everything that one shard depends on; picklable for worker pools."""

    path: str  # the finished file
    directory: str  # of the split
    files: tuple[tuple[str, tuple[int, ...]], ...]  # names below it, with class ids
    classes: tuple[ClassEntry, ...]
    presize: int | None  # pixels of the shorter side to which larger images are reduced
    dicom: bool  # whether the files are DICOM, of which a record holds the stored values
    fold: tuple[int, int] | None  # the fold of the images, from 0, and how many there are


class Finding(NamedTuple):
    """An image that was left out or changed, and why."""

    file: str
    reason: str
    repaired: bool


class ShardReport(NamedTuple):
    """The result of a shard."""

    file: str  # name without directory
    inputs: str  # digest of all inputs
    records: int
    bytes: int
    per_class: dict[str, int]  # images written, by class name
    findings: list[Finding]


def inputs_digest(job: ShardJob) -> str:
    """Returns the digest of a shard's labels, options and image files.

    Local files count with size and modification time. In buckets only their names count, because
    each state would cost a request.
    """
    digest = hashlib.sha256(json.dumps([FORMAT_VERSION, *job[2:]]).encode())
    if not storage.is_remote(job.directory):
        for name, _ in job.files:
            try:
                state = storage.stat(os.path.join(job.directory, name))
            except OSError:
                digest.update(b"missing;")
            else:
                digest.update(f"{state.size} {state.modified_ns};".encode())
    return digest.hexdigest()


def build_shard(
    job: ShardJob, progress: Callable[[int], Any], verify: Callable[[], None]
) -> ShardReport:
    """Checks and writes the images of one shard; those that cannot be decoded are left out.

    Args:
        job: the shard.
        progress: called with the number of images done since the last call.
        verify: called before the file gets its name; raises if another run has taken over.

    Raises:
        OSError: the file cannot be written.
    """
    inputs = inputs_digest(job)
    per_class: Counter[str] = Counter()
    findings: list[Finding] = []

    def records() -> Iterator[bytes]:
        for name, labels in job.files:
            for record in _records(job, name, labels, findings):
                per_class.update(job.classes[label - 1].name for label in labels)
                yield record
            progress(1)
        verify()

    count = write_shard(job.path, records())
    size = storage.stat(job.path).size
    return ShardReport(os.path.basename(job.path), inputs, count, size, dict(per_class), findings)


def _records(
    job: ShardJob, name: str, labels: Sequence[int], findings: list[Finding]
) -> list[bytes]:
    """Returns the records of a file; none, with a finding, if it cannot be decoded."""
    try:
        with open_bytes(os.path.join(job.directory, name)) as file:
            content = file.read()
        if job.dicom:
            scan = read_scan(content)
            records, repairs = _slice_records(job, name, labels, scan), scan.repairs
        else:
            image = standardize(content)
            repairs = image.repairs
            if job.presize and min(image.height, image.width) > job.presize:
                image = _presized(image, job.presize)
                repairs += (f"reduced to a shorter side of {job.presize} pixels",)
            records = [encode_example(image, filename=name, labels=labels, classes=job.classes)]
    except (ImageError, DicomError) as error:
        findings.append(Finding(name, str(error), repaired=False))
    except OSError as error:
        findings.append(Finding(name, f"cannot be read: {storage.reason(error)}", repaired=False))
    else:
        findings.extend(Finding(name, repair, repaired=True) for repair in repairs)
        return records
    return []


def _slice_records(job: ShardJob, name: str, labels: Sequence[int], scan: Scan) -> list[bytes]:
    return [
        encode_slice(
            one.png,
            height=one.height,
            width=one.width,
            rescale=(one.slope, one.intercept),
            filename=frame,
            labels=labels,
            classes=job.classes,
            patient=scan.patient,
            fold=job.fold,
        )
        for frame, one in zip(frame_names(name, len(scan.slices)), scan.slices, strict=True)
    ]


def _presized(image: StandardImage, side: int) -> StandardImage:
    factor = side / min(image.height, image.width)
    size = (round(image.width * factor), round(image.height * factor))
    pixels = cv2.resize(decode_rgb(image.encoded), size, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if image.format == "jpeg" else []
    _, encoded = cv2.imencode(".jpg" if image.format == "jpeg" else ".png", bgr, options)
    return image._replace(encoded=encoded.tobytes(), height=size[1], width=size[0])
