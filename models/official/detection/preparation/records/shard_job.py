"""The inputs of one shard, its report, and the digest by which a finished shard is recognised."""

import hashlib
import json
import os
from typing import NamedTuple

import numpy as np

from tpudet.detection.preparation.sources.annotations import COORDINATES, Annotations, Finding
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.json_text import parse_json

# Increase it whenever equal inputs give other bytes, so that finished files count as outdated.
FORMAT_VERSION = 5


class ShardJob(NamedTuple):
    """Everything that one shard depends on; picklable for worker pools."""

    path: str  # in the directory of the unfinished set
    annotations: Annotations  # of this shard's images, in their order
    image_directories: tuple[str, ...]  # searched in this order
    include_masks: bool
    check_pixels: bool  # False: check only the structure of JPEGs
    write: bool  # False: check only


class ShardReport(NamedTuple):
    """The result of a shard."""

    file: str  # name without directory
    inputs: str  # digest of all inputs
    images: int  # as annotated
    records: int  # written
    boxes: int  # written
    boxes_per_class: dict[str, int]  # by name
    crowds_per_class: dict[str, int]  # crowd regions among them
    images_per_boxes: dict[str, int]  # by the number of their boxes
    findings: list[Finding]
    bytes: int  # of the file; 0 where none was written


def report_to_json(report: ShardReport) -> str:
    """Inverse of `report_from_json`."""
    return json.dumps(report._asdict(), ensure_ascii=False)


def report_from_json(text: str) -> ShardReport:
    """Inverse of `report_to_json`."""
    fields = parse_json(text)
    fields["findings"] = [Finding(*finding) for finding in fields["findings"]]
    # Reports of earlier versions may have more fields; their `inputs` differ, so they are unused.
    return ShardReport(**{name: fields[name] for name in ShardReport._fields})


def inputs_digest(job: ShardJob) -> str:
    """Returns the digest of a shard's annotations, options, format version and image files.

    Local files of images and masks count with size and modification time. In buckets only their
    names count, because each state would cost a request.
    """
    digest = hashlib.sha256()
    annotations = job.annotations
    options = (job.include_masks, job.check_pixels)
    head = (FORMAT_VERSION, annotations.normalized, annotations.classes, *options)
    digest.update(json.dumps(head).encode())
    boxes = annotations.boxes
    for column in annotations.images:
        digest.update(json.dumps(annotations.images[column].tolist()).encode())
    digest.update(json.dumps(boxes["label"].astype(str).tolist()).encode())
    for column in ("image", *COORDINATES, "is_crowd", "area"):
        digest.update(np.ascontiguousarray(boxes[column].to_numpy()).tobytes())
    if "lacks_mask" in boxes and boxes["lacks_mask"].any():
        digest.update(boxes["lacks_mask"].to_numpy().tobytes())
    if "segmentation" in boxes:
        segmentations = boxes["segmentation"].tolist()
        digest.update(json.dumps(segmentations).encode())
        for path in segmentations:
            if isinstance(path, str) and "://" not in path:
                digest.update(_file_state(path))
    for directory in job.image_directories:
        if "://" not in directory:
            for file in annotations.images["file"]:
                digest.update(_file_state(os.path.join(directory, file)))
    return digest.hexdigest()


def _file_state(path: str) -> bytes:
    try:
        state = storage.stat(path)
    except OSError:
        return b"missing;"
    return f"{state.size} {state.modified_ns};".encode()
