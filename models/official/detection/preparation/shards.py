"""Makes one shard: a pure function of its annotations and images that leaves one finished file."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tensorflow as tf

from detection.data.tfrecord import encode_example
from detection.preparation.annotations import COORDINATES, Finding, PreparationError
from detection.preparation.checks import ImageRejected, check_boxes, check_image, check_labels
from detection.preparation.masks import mask_png
from detection.preparation.shard_jobs import ShardJob, ShardReport, inputs_digest
from trainkit.images import StandardImage
from trainkit.records import write_shard


def run_shard(job: ShardJob, token: str, progress: Callable[[int], Any]) -> ShardReport:
    """Checks one shard's images and boxes and, unless only checking, writes its file.

    Args:
        job: the shard.
        token: part of the temporary file's name, so that two runs never write into one file.
        progress: called with the number of images done since the last call.

    Raises:
        PreparationError: the file cannot be written.
    """
    inputs = inputs_digest(job) if job.write else ""
    shard = _Shard(job, progress)
    size, digest = 0, ""
    try:
        if job.write:
            temporary = f"{job.path}.{token}"
            write_shard(temporary, shard.records())
            size, digest = _measure(temporary)
            tf.io.gfile.rename(temporary, job.path, overwrite=True)
        else:
            for _ in shard.records():
                pass
    except (tf.errors.OpError, OSError) as error:
        # OpError does not survive the way out of a worker process.
        raise PreparationError(f"{job.path} cannot be written: {error}") from None
    return ShardReport(
        file=os.path.basename(job.path),
        inputs=inputs,
        images=len(job.annotations.images),
        records=shard.num_records,
        boxes=sum(shard.boxes_per_class.values()),
        boxes_per_class=dict(shard.boxes_per_class),
        findings=shard.findings,
        bytes=size,
        sha256=digest,
    )


def _measure(path: str) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


class _Objects(NamedTuple):
    """The boxes of one image, or of all images of a shard, as arrays of n rows."""

    corners: np.ndarray  # [n, 4] y1 x1 y2 x2
    class_ids: np.ndarray  # [n]
    is_crowd: np.ndarray  # [n]
    areas: np.ndarray  # [n] pixels, NaN where not annotated
    segmentations: np.ndarray | None  # [n] objects


def _objects(boxes: pd.DataFrame) -> _Objects:
    return _Objects(
        corners=boxes[list(COORDINATES)].to_numpy(dtype=np.float64),
        class_ids=boxes["class_id"].to_numpy(),
        is_crowd=boxes["is_crowd"].to_numpy(),
        areas=boxes["area"].to_numpy(),
        segmentations=boxes["segmentation"].to_numpy() if "segmentation" in boxes else None,
    )


def _rows(objects: _Objects, rows: slice | np.ndarray) -> _Objects:
    segmentations = objects.segmentations
    return _Objects(
        corners=objects.corners[rows],
        class_ids=objects.class_ids[rows],
        is_crowd=objects.is_crowd[rows],
        areas=objects.areas[rows],
        segmentations=None if segmentations is None else segmentations[rows],
    )


class _Shard:
    """The tallies that grow while a shard's records are made."""

    def __init__(self, job: ShardJob, progress: Callable[[int], Any]) -> None:
        self.job = job
        self.progress = progress
        self.num_records = 0
        self.boxes_per_class: Counter[str] = Counter()
        self.findings: list[Finding] = []

    def records(self) -> Iterator[bytes]:
        """Yields one serialized example an image that can be used; b"" where only checking."""
        annotations = self.job.annotations
        images, boxes = annotations.images, annotations.boxes
        sizes = images[["height", "width"]].to_numpy(dtype=np.float64)
        frames = np.ones_like(sizes) if annotations.normalized else sizes
        annotated = np.bincount(boxes["image"], minlength=len(images))
        labelled = check_labels(boxes, images["file"], annotations.class_ids())
        checked = check_boxes(labelled.boxes, images["file"], frames)
        self.findings += labelled.findings + checked.findings
        bounds = np.searchsorted(checked.boxes["image"].to_numpy(), np.arange(len(images) + 1))
        all_objects = _objects(checked.boxes)
        names = zip(images["source_id"], images["file"], strict=True)
        for index, (source_id, file) in enumerate(names):
            image = self._load(file, sizes[index], annotated[index])
            if image is not None:
                rows = slice(bounds[index], bounds[index + 1])
                if np.isnan(frames[index]).any():
                    objects = self._check_late(checked.boxes.iloc[rows], images["file"], image)
                else:
                    objects = _rows(all_objects, rows)
                yield self._example(source_id, file, image, objects, annotated[index])
            self.progress(1)

    def _load(self, file: str, size: np.ndarray, annotated: int) -> StandardImage | None:
        """The image, or None where it is left out, and all its boxes with it."""
        try:
            with tf.io.gfile.GFile(os.path.join(self.job.image_directory, file), "rb") as stream:
                encoded = stream.read()
            image, findings = check_image(encoded, file=file, height=size[0], width=size[1])
        except ImageRejected as rejected:
            reason, detail = rejected.reason, rejected.detail
        except tf.errors.NotFoundError:
            reason, detail = "missing file", ""
        except tf.errors.OpError as error:
            reason, detail = "file cannot be read", error.message
        else:
            self.findings += findings
            return image
        lost = "with 1 box" if annotated == 1 else f"with {annotated} boxes"
        detail = f"{detail}; {lost}" if detail else lost
        self.findings.append(Finding(file, reason, detail, repaired=False))
        return None

    def _check_late(self, boxes: pd.DataFrame, files: pd.Series, image: StandardImage) -> _Objects:
        """Checks the boxes of an image whose size only its file tells."""
        frames = np.full((len(files), 2), (image.height, image.width), dtype=np.float64)
        checked = check_boxes(boxes, files, frames)
        self.findings += checked.findings
        return _objects(checked.boxes)

    def _example(
        self, source_id: str, file: str, image: StandardImage, objects: _Objects, annotated: int
    ) -> bytes:
        size = np.array([image.height, image.width] * 2, dtype=np.float64)
        normalized = objects.corners
        if not self.job.annotations.normalized:
            normalized = normalized / size
        masks = None
        if self.job.include_masks:
            masks, kept = self._masks(file, image, objects)
            objects, normalized = _rows(objects, kept), normalized[kept]
        if annotated > 0 and len(normalized) == 0:
            reason = "all its boxes left out: kept as an image without objects"
            self.findings.append(Finding(file, reason, "", repaired=True))
        texts = [self.job.annotations.classes[row - 1].name for row in objects.class_ids]
        self.boxes_per_class.update(texts)
        self.num_records += 1
        if not self.job.write:
            return b""
        sides = (normalized[:, 2:] - normalized[:, :2]) * size[:2]
        known = objects.areas > 0
        return encode_example(
            source_id=source_id,
            filename=file,
            encoded=image.encoded,
            image_format=image.format,
            height=image.height,
            width=image.width,
            boxes_normalized=normalized,
            labels=objects.class_ids.tolist(),
            texts=texts,
            is_crowd=objects.is_crowd.tolist(),
            areas=np.where(known, objects.areas, sides.prod(axis=1)).tolist(),
            masks=masks,
        )

    def _masks(
        self, file: str, image: StandardImage, objects: _Objects
    ) -> tuple[list[bytes], np.ndarray]:
        """The masks that can be drawn, and which rows they belong to; the others are left out."""
        segmentations = [] if objects.segmentations is None else objects.segmentations.tolist()
        drawn = [mask_png(s, height=image.height, width=image.width) for s in segmentations]
        for row, mask in enumerate(drawn):
            if mask is None:
                corners = ", ".join(f"{value:g}" for value in objects.corners[row])
                detail = f"y1 x1 y2 x2 {corners}"
                self.findings.append(Finding(file, "object without a usable mask", detail, False))
        kept = np.array([mask is not None for mask in drawn], dtype=bool)
        return [mask for mask in drawn if mask is not None], kept
