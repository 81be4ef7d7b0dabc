"""Scores masks by the rules of the instance segmentation challenge, in two stages.

Masks are matched first, by the overlap of masks, with the objects that have one. The others are
matched with the boxes of objects without a mask, and those that match are ignored.

Recall counts the objects with a mask and, as the published scorer does, every group-of box, with a
mask or without.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.evaluation.open_images.mask_text import MaskError, decode_mask
from tpudet.detection.evaluation.open_images.metric import (
    Overlap,
    Scored,
    assign,
    best_boxes,
    collect,
    countable_rows,
    image_class_keys,
)
from tpudet.detection.evaluation.open_images.predictions import ReadCounts, image_rows
from tpudet.detection.evaluation.open_images.truth import LabelledTruth
from tpudet.detection.evaluation.open_images.truth_csv import MaskTexts, TruthFileError
from tpudet.detection.ops.numpy_masks import Rle as Mask
from tpudet.detection.submission.errors import (
    NO_BAD_ROWS,
    NUM_SHOWN,
    BadRow,
    BadRows,
    BadRowsError,
    SubmissionError,
)
from tpudet.detection.types import ImageDetections
from tpudet.trainkit.files.storage import open_file

_HEADER = ("imageid", "imagewidth", "imageheight", "predictionstring")
_MAX_SIDE = 1 << 16
_LABELS_SHOWN = 5
csv.field_size_limit(1 << 27)


class MaskPredictions(NamedTuple):
    """Detections with masks: `boxes` are around the masks, in 0..1 of the image."""

    detections: ImageDetections
    masks: list[Mask]  # D COCO RLE


def truth_masks(path: str, texts: MaskTexts) -> list[Mask | None]:
    """The masks of the ground truth's boxes, None for no mask or an empty one.

    Raises:
        TruthFileError: a text is not a mask of its size; the first ten are named.
    """
    masks: list[Mask | None] = []
    bad: dict[int, str] = {}
    for text, (height, width), line in zip(*texts, strict=True):
        try:
            mask = decode_mask(text, int(height), int(width)) if text else None
        except MaskError as error:
            bad[int(line)] = str(error)  # an expanded box is one row
            mask = None
        masks.append(mask if mask and coco_mask.area(mask) else None)
    if bad:
        shown = [f"  {path}, line {n}: Mask {why}" for n, why in sorted(bad.items())[:NUM_SHOWN]]
        raise TruthFileError(f"{len(bad)} bad masks:\n" + "\n".join(shown))
    return masks


def read_mask_predictions(
    path: str, labelled: LabelledTruth, *, skip_bad: bool = False
) -> tuple[MaskPredictions, ReadCounts]:
    """Reads the predictions of a submission of masks whose class is verified on their image.

    Empty masks have no box and are left out.

    Args:
        path: `ImageId,ImageWidth,ImageHeight,PredictionString`, a prediction being
            `MID score mask`.
        labelled: the ground truth.
        skip_bad: whether bad rows are left out and counted.

    Raises:
        SubmissionError: it is not such a file, or none of its images is in the ground truth.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    rows = list(_read_rows(path))
    ids = np.array([fields[0].encode() for _, fields in rows] or [b""], "S")[: len(rows)]
    images = image_rows(path, ids, labelled)
    sizes = _truth_sizes(labelled)
    lines_of: dict[str, int] = {}
    bad = NO_BAD_ROWS
    counted = _Counted(labelled)
    for (line, fields), image in zip(rows, images.tolist(), strict=True):
        try:
            if fields[0] in lines_of:
                raise MaskError(f"image {fields[0]!r} is in line {lines_of[fields[0]]} already")
            predictions = _read_row(fields, sizes.get(image))
        except MaskError as error:
            bad = bad.plus(BadRows([BadRow(path, line, str(error))], 1))
            continue
        lines_of[fields[0]] = line
        for label, score, mask in predictions:
            counted.add(image, label, score, mask)
    if bad.total and not skip_bad:
        raise BadRowsError(bad)
    known = images[images >= 0]
    return counted.predictions(), ReadCounts(
        images=len(rows),
        images_elsewhere=len(rows) - len(known),
        images_missing=len(labelled.image_ids) - len(np.unique(known)),
        predictions=counted.number,
        elsewhere=counted.elsewhere,
        unverified=counted.unverified,
        unknown=counted.describe_unknown(),
        bad=bad,
    )


class _Counted:
    """Collects the predictions that count, and counts the others."""

    def __init__(self, labelled: LabelledTruth) -> None:
        entries = enumerate(labelled.classes, start=1)
        self._class_ids = {entry.identifier: class_id for class_id, entry in entries}
        self._verified = labelled.truth.verified
        self._found: list[tuple[int, Any, float, int]] = []
        self._masks: list[Mask] = []
        self._unknown: Counter[str] = Counter()
        self.number = self.elsewhere = self.unverified = 0

    def add(self, image: int, label: str, score: float, mask: Mask) -> None:
        """Adds one prediction; `image` is -1 if the ground truth lacks it."""
        class_id = self._class_ids.get(label, 0)
        self.number += 1
        self.elsewhere += image < 0
        self._unknown[label] += not class_id
        if image < 0 or not class_id:
            return
        if not self._verified[image, class_id - 1]:
            self.unverified += 1
        elif coco_mask.area(mask):
            self._found.append((image, _box_normalized(mask), score, class_id))
            self._masks.append(mask)

    def predictions(self) -> MaskPredictions:
        """All predictions that count."""
        found = self._found
        images, boxes, scores, classes = zip(*found, strict=True) if found else ((),) * 4
        detections = ImageDetections(
            np.array(images, np.int64),
            np.array(boxes, np.float64).reshape(-1, 4),
            np.array(scores, np.float64),
            np.array(classes, np.int64),
        )
        return MaskPredictions(detections, self._masks)

    def describe_unknown(self) -> str:
        """The number of predictions with unknown labels, in words; empty if there are none."""
        labels = +self._unknown
        shown = ", ".join(list(labels)[:_LABELS_SHOWN])
        what = "predictions ignored, of labels that are not classes"
        return f"{labels.total()} {what}: {shown}" if labels else ""


def score_masks(
    labelled: LabelledTruth, masks: Sequence[Mask | None], predictions: MaskPredictions
) -> Scored:
    """Matches masks with the ground truth; `masks` are those of `truth_masks`."""
    truth, detections = labelled.truth, predictions.detections
    has_mask = np.array([mask is not None for mask in masks], bool)
    rows = countable_rows(truth, detections)
    keys, boxes = image_class_keys(truth, detections, rows), detections.boxes[rows]
    found = [predictions.masks[row] for row in rows.tolist()]
    group = truth.is_group_of
    overlaps = []
    for chosen, over_detection in ((~group, False), (group, True)):
        place = np.flatnonzero(chosen & has_mask)
        truth_keys = image_class_keys(truth, truth, place)
        overlaps.append(
            _best_masks(truth_keys, place, masks, keys, found, over_detection=over_detection)
        )
    without = (
        best_boxes(truth, ~group & ~has_mask, keys, boxes, over_detection=False),
        best_boxes(truth, group & ~has_mask, keys, boxes, over_detection=True),
    )
    is_true, is_ignored = assign(overlaps[0], overlaps[1], without)
    return collect(truth, detections, rows, is_true, is_ignored, has_mask | group)


def _best_masks(
    truth_keys: np.ndarray,
    truth_rows: np.ndarray,
    masks: Sequence[Mask | None],
    keys: np.ndarray,
    found: Sequence[Mask],
    *,
    over_detection: bool,
) -> Overlap:
    """As `best_boxes`, for masks; loops over images and classes that have any."""
    result = Overlap(np.full(len(keys), -1), np.zeros(len(keys)))
    truth_order = np.argsort(truth_keys, kind="stable")
    order = np.argsort(keys, kind="stable")
    groups, firsts = np.unique(keys[order], return_index=True)
    lasts = np.append(firsts[1:], len(keys))
    truth_firsts = np.searchsorted(truth_keys[truth_order], groups, "left")
    truth_lasts = np.searchsorted(truth_keys[truth_order], groups, "right")
    for group in np.flatnonzero(truth_lasts > truth_firsts).tolist():
        own = truth_rows[truth_order[truth_firsts[group] : truth_lasts[group]]]
        places = order[firsts[group] : lasts[group]]
        flags = [int(over_detection)] * len(own)  # for a crowd COCO divides by the detection
        overlaps = np.asarray(
            coco_mask.iou([found[i] for i in places], [masks[i] for i in own], flags)
        )
        best = overlaps.argmax(axis=1)
        result.best[places] = own[best]
        result.overlap[places] = overlaps[np.arange(len(places)), best]
    return result


def _read_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, four fields), blank lines left out."""
    with open_file(path, "rb") as file:
        try:
            reader = csv.reader(io.StringIO(file.read().decode("utf-8-sig"), newline=""))
        except UnicodeDecodeError as error:
            raise SubmissionError(f"{path} is not text: {error}") from error
    header = next(reader, [])
    if tuple(name.strip().lower() for name in header) != _HEADER:
        raise SubmissionError(
            f"{path} starts with {','.join(header)[:80]!r}; for masks its first line must be "
            "ImageId,ImageWidth,ImageHeight,PredictionString"
        )
    for row in reader:
        fields = [field.strip() for field in row]
        if any(fields):
            yield reader.line_num, fields


def _read_row(
    row: Sequence[str], truth_size: tuple[int, int] | None
) -> list[tuple[str, float, Mask]]:
    """The (label, score, mask) of a row.

    Raises:
        MaskError: the row is not usable.
    """
    if len(row) != len(_HEADER) or not row[0]:
        raise MaskError(f"{len(row)} fields instead of 4, or no image id")
    tokens = row[3].split()
    if len(tokens) % 3:
        raise MaskError(f"{len(tokens)} tokens, which is not a multiple of 3 (LABEL score mask)")
    if not all(side.isdecimal() and 0 < int(side) < _MAX_SIDE for side in row[1:3]):
        raise MaskError(f"ImageWidth,ImageHeight are {row[1]},{row[2]}")
    width, height = int(row[1]), int(row[2])
    if tokens and truth_size and truth_size != (height, width):
        raise MaskError(
            f"its masks are {width} x {height}, those of the ground truth {truth_size[1]} x "
            f"{truth_size[0]}"
        )
    found = []
    for place in range(0, len(tokens), 3):
        label, score_text, text = tokens[place : place + 3]
        number = place // 3 + 1
        try:
            score = float(score_text)
        except ValueError:
            score = -1.0
        if not 0 <= score <= 1:
            raise MaskError(f"prediction {number}: the score is {score_text!r}, not in 0..1")
        try:
            found.append((label, score, decode_mask(text, height, width)))
        except MaskError as error:
            raise MaskError(f"prediction {number}: its mask {error}") from error
    return found


def _truth_sizes(labelled: LabelledTruth) -> dict[int, tuple[int, int]]:
    """From image row to height and width of its masks, if it has any."""
    if labelled.masks is None:
        raise ValueError("the ground truth was read without masks")
    rows = np.flatnonzero(labelled.masks.sizes[:, 0])
    images = labelled.truth.image_indices[rows].tolist()
    return {
        image: (height, width)
        for image, (height, width) in zip(images, labelled.masks.sizes[rows].tolist(), strict=True)
    }


def _box_normalized(mask: Mask) -> tuple[float, float, float, float]:
    height, width = mask["size"]
    x, y, w, h = coco_mask.toBbox(mask).tolist()
    return y / height, x / width, (y + h) / height, (x + w) / width
