"""Builds one shard, a pure function of its annotations and images that leaves one finished file."""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.data.tfrecord import (
    EncodedImage,
    ObjectColumns,
    example_pieces,
    object_columns,
)
from tpudet.detection.ops.numpy_boxes import turn_boxes_upright
from tpudet.detection.preparation.records.shard_job import ShardJob, ShardReport, inputs_digest
from tpudet.detection.preparation.sources.annotations import COORDINATES, Finding, missing_image
from tpudet.detection.preparation.sources.checks import (
    CheckedImage,
    ImageRejected,
    check_boxes,
    check_image,
    check_labels,
)
from tpudet.detection.preparation.sources.image_files import read_in_turn
from tpudet.detection.preparation.sources.masks import describe_undrawn, mask_png
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.images.standardize import StandardImage
from tpudet.trainkit.records import Record, write_shard

_PROGRESS_STEP = 16  # images; reporting each one would take a tenth of the time of small ones


def build_shard(
    job: ShardJob,
    progress: Callable[[int], Any],
    *,
    verify: Callable[[], None] = lambda: None,
) -> ShardReport:
    """Checks one shard's images and boxes and, unless only checking, writes its file.

    Args:
        job: the shard.
        progress: called with the number of images done since the last call.
        verify: called before the file gets its name; raises if another run has taken over.

    Raises:
        UserError: the file cannot be written, or this machine lacks the folders of images.
    """
    _require_folders(job.image_directories)
    inputs = inputs_digest(job) if job.write else ""
    shard = _Shard(job, progress)
    size = 0
    try:
        if job.write:
            write_shard(job.path, _and_then(shard.records(), verify))
            size = storage.stat(job.path).size
        else:
            for _ in shard.records():
                pass
    except OSError as error:
        # Errors with a path cannot leave a worker process.
        message = f"{job.path} cannot be written: {storage.reason(error)}"
        raise UserError(message) from None
    return ShardReport(
        file=os.path.basename(job.path),
        inputs=inputs,
        images=len(job.annotations.images),
        records=shard.num_records,
        boxes=shard.labels.total(),
        boxes_per_class=shard.per_class(shard.labels),
        crowds_per_class=shard.per_class(shard.crowds),
        images_per_boxes={str(n): count for n, count in sorted(shard.images_per_boxes.items())},
        findings=shard.findings,
        bytes=size,
    )


def _and_then(records: Iterator[Record], verify: Callable[[], None]) -> Iterator[Record]:
    yield from records
    verify()


def _require_folders(directories: Sequence[str]) -> None:
    """Raises if a node of a cluster lacks a folder, whose images would all count as missing."""
    absent = [folder for folder in directories if not storage.is_folder(folder)]
    if absent:
        raise UserError(
            f"{socket.gethostname()} has no folder {' nor '.join(absent)}: the images must be "
            "reachable under the same path from every machine."
        )


def _rectangle(
    y1: float, x1: float, y2: float, x2: float, height: int, width: int
) -> list[list[float]]:
    """A box in fractions as a polygon in pixels."""
    corners = np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]]) * (width, height)
    return [corners.ravel().tolist()]


def _scaled(polygons: Any, width: int, height: int) -> Any:
    """Polygons in fractions as polygons in pixels; a path, or None, as it is."""
    if not isinstance(polygons, list):
        return polygons
    return [(np.reshape(p, (-1, 2)) * (width, height)).ravel().tolist() for p in polygons]


class _Objects(NamedTuple):
    """The n boxes of one image, or of all images of a shard."""

    columns: ObjectColumns  # areas as annotated, NaN if unknown
    fractions: list[float]  # box area / image area
    corners: np.ndarray  # [n, 4] y1 x1 y2 x2 as annotated
    segmentations: np.ndarray | None  # [n] objects, if masks are wanted


def _slices(boxes: pd.DataFrame, num_images: int) -> list[slice]:
    """Returns the rows of each image in `boxes`, which are ordered by image."""
    bounds = np.searchsorted(boxes["image"], np.arange(num_images + 1)).tolist()
    return [slice(*pair) for pair in pairwise(bounds)]


def _rows(objects: _Objects, rows: slice) -> _Objects:
    columns, fractions, corners, segmentations = objects
    own = None if segmentations is None else segmentations[rows]
    return _Objects(columns.rows(rows), fractions[rows], corners[rows], own)


def _turned_upright(objects: _Objects, orientation: int) -> _Objects:
    """Objects that were drawn on the stored image, in the frame of the upright one."""
    columns = objects.columns
    boxes = np.array([columns.ymin, columns.xmin, columns.ymax, columns.xmax], np.float32).T
    sides = turn_boxes_upright(boxes.reshape(-1, 4), orientation).T.tolist()
    named = dict(zip(("ymin", "xmin", "ymax", "xmax"), sides, strict=True))
    return objects._replace(columns=columns._replace(**named))


class _Shard:
    """Makes the records of a shard and counts boxes and findings."""

    def __init__(self, job: ShardJob, progress: Callable[[int], Any]) -> None:
        self.job = job
        self.progress = progress
        self.num_records = 0
        self.labels: Counter[int] = Counter()  # boxes written, by class id
        self.crowds: Counter[int] = Counter()  # crowd regions among them
        self.images_per_boxes: Counter[int] = Counter()  # images written, by number of boxes
        self.findings: list[Finding] = []
        self._class_names = [entry.name for entry in job.annotations.classes]

    def per_class(self, boxes: Counter[int]) -> dict[str, int]:
        """Returns numbers of boxes by class name; classes without boxes are left out."""
        counts: Counter[str] = Counter()
        for label, count in sorted(boxes.items()):
            counts[self._class_names[label - 1]] += count
        return dict(counts)

    def records(self) -> Iterator[Record]:
        """Yields one serialized example per usable image; b"" in a check."""
        annotations = self.job.annotations
        images, boxes = annotations.images, annotations.boxes
        sizes = images[["height", "width"]].to_numpy(dtype=np.float64)
        frames = np.ones_like(sizes) if annotations.normalized else sizes
        annotated = np.bincount(boxes["image"], minlength=len(images)).tolist()
        labelled = check_labels(boxes, images["file"], annotations.class_ids())
        checked = check_boxes(labelled.boxes, images["file"], frames)
        self.findings += labelled.findings + checked.findings
        is_framed = np.logical_not(np.isnan(frames).any(axis=1))
        framed_boxes = checked.boxes[is_framed[checked.boxes["image"].to_numpy()]]
        objects = self._objects(framed_boxes, frames)
        own_objects = _slices(framed_boxes, len(images))
        own_boxes = _slices(checked.boxes, len(images))
        names, files = images["source_id"].tolist(), images["file"].tolist()
        contents = read_in_turn(self.job.image_directories, files)
        rows = zip(names, files, contents, sizes.tolist(), annotated, strict=True)
        for index, (source_id, file, content, size, count) in enumerate(rows):
            image = self._checked(file, content, size, count)
            if image is not None:
                if is_framed[index]:
                    own = _rows(objects, own_objects[index])
                else:
                    late_boxes = checked.boxes.iloc[own_boxes[index]]
                    own = self._check_late(late_boxes, images["file"], image.image)
                yield self._example(source_id, file, image, own, count)
            if (index + 1) % _PROGRESS_STEP == 0:
                self.progress(_PROGRESS_STEP)
        self.progress(len(images) % _PROGRESS_STEP)

    def _objects(self, boxes: pd.DataFrame, frames: np.ndarray) -> _Objects:
        """Returns the objects of boxes whose frames are known."""
        corners = boxes[list(COORDINATES)].to_numpy(dtype=np.float64)
        normalized = corners / np.tile(frames[boxes["image"].to_numpy()], 2)
        labels = boxes["class_id"].tolist()
        return _Objects(
            columns=object_columns(
                boxes_normalized=normalized,
                labels=labels,
                texts=[self._class_names[label - 1] for label in labels],
                is_crowd=boxes["is_crowd"].tolist(),
                areas=boxes["area"].tolist(),
                lacks_mask=boxes["lacks_mask"].tolist() if "lacks_mask" in boxes else None,
            ),
            fractions=(normalized[:, 2:] - normalized[:, :2]).prod(axis=1).tolist(),
            corners=corners,
            segmentations=boxes["segmentation"].to_numpy() if "segmentation" in boxes else None,
        )

    def _checked(
        self, file: str, content: bytes | OSError, size: Sequence[float], annotated: int
    ) -> CheckedImage | None:
        """Returns the checked image, or None if it is left out with all its boxes."""
        if isinstance(content, bytes):
            try:
                found = check_image(
                    content,
                    file=file,
                    height=size[0],
                    width=size[1],
                    check_pixels=self.job.check_pixels,
                )
            except ImageRejected as rejected:
                reason, detail = rejected.reason, rejected.detail
            else:
                self.findings += found.findings
                return found
        elif isinstance(content, FileNotFoundError):
            self.findings.append(missing_image(file, annotated))
            return None
        else:
            reason, detail = "file cannot be read", storage.reason(content)
        lost = missing_image(file, annotated).detail
        detail = f"{detail}; {lost}" if detail else lost
        self.findings.append(Finding(file, reason, detail, repaired=False))
        return None

    def _check_late(self, boxes: pd.DataFrame, files: pd.Series, image: StandardImage) -> _Objects:
        """Checks the boxes of an image whose size is known only from its file."""
        frames = np.full((len(files), 2), (image.height, image.width), dtype=np.float64)
        checked = check_boxes(boxes, files, frames)
        self.findings += checked.findings
        return self._objects(checked.boxes, frames)

    def _example(
        self, source_id: str, file: str, checked: CheckedImage, objects: _Objects, annotated: int
    ) -> Record:
        image, orientation, _ = checked
        masks = None
        if self.job.include_masks:
            masks, objects = self._masks(file, image, orientation, objects)
        if orientation != 1:
            objects = _turned_upright(objects, orientation)
        columns = objects.columns
        if annotated > 0 and not columns.labels:
            reason = "all its boxes left out: kept as an image without objects"
            self.findings.append(Finding(file, reason, "", repaired=True))
        self.labels.update(columns.labels)
        ignored = zip(columns.labels, columns.is_crowd, columns.lacks_mask, strict=True)
        self.crowds.update(label for label, *flags in ignored if any(flags))
        self.images_per_boxes[len(columns.labels)] += 1
        self.num_records += 1
        if not self.job.write:
            return b""
        pixels = image.height * image.width
        pairs = zip(columns.areas, objects.fractions, strict=True)
        areas = [area if area > 0 else fraction * pixels for area, fraction in pairs]
        return example_pieces(
            EncodedImage(source_id, file, image.encoded, image.format, image.height, image.width),
            columns._replace(areas=areas),
            masks=masks,
            with_digest=self.job.check_pixels,
        )

    def _masks(
        self, file: str, image: StandardImage, orientation: int, objects: _Objects
    ) -> tuple[list[bytes], _Objects]:
        """Returns the drawable masks, upright, and their objects; the others are left out.

        A region to ignore that has no mask is its box.
        """
        columns = objects.columns
        is_lying = orientation >= 5
        height, width = (image.width, image.height) if is_lying else (image.height, image.width)
        segmentations: list[Any] = [None] * len(columns.labels)
        if objects.segmentations is not None:
            segmentations = objects.segmentations.tolist()
        if self.job.annotations.normalized:
            segmentations = [_scaled(polygons, width, height) for polygons in segmentations]
        sides = zip(columns.ymin, columns.xmin, columns.ymax, columns.xmax, strict=True)
        boxes = [_rectangle(*box, height, width) for box in sides]
        flags = zip(columns.is_crowd, columns.lacks_mask, strict=True)
        segmentations = [
            box if own is None and any(ignored) else own
            for own, box, ignored in zip(segmentations, boxes, flags, strict=True)
        ]
        frame = {"height": height, "width": width, "orientation": orientation}
        drawn = [mask_png(segmentation, **frame) for segmentation in segmentations]
        for row, mask in enumerate(drawn):
            if mask is None:
                corners = ", ".join(f"{value:g}" for value in objects.corners[row])
                why = describe_undrawn(segmentations[row], height=height, width=width)
                detail = f"y1 x1 y2 x2 {corners}: {why}"
                self.findings.append(Finding(file, "object without a usable mask", detail, False))
        kept = [row for row, mask in enumerate(drawn) if mask is not None]
        columns = ObjectColumns._make([[c[row] for row in kept] for c in columns])
        masks = [mask for mask in drawn if mask is not None]
        areas = [
            area if area > 0 else float(mask.area)
            for area, mask in zip(columns.areas, masks, strict=True)
        ]
        return [mask.encoded for mask in masks], objects._replace(
            columns=columns._replace(areas=areas),
            fractions=[objects.fractions[row] for row in kept],
        )
