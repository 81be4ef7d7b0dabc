"""Scores masks by the rules of the instance segmentation challenge, in two stages.

Masks are matched first, by the overlap of masks, with the objects that have one. The others are
matched with the boxes of objects without a mask, and those that match are ignored.

Recall counts the objects with a mask and, as the published scorer does, every group-of box, with a
mask or without.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.evaluation.open_images.metric import (
    ChallengeTruth,
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
from tpudet.detection.ops.numpy_masks import mask_area, mask_box
from tpudet.detection.submission.errors import (
    NUM_SHOWN,
    BadRowsError,
)
from tpudet.detection.submission.mask_rows import MaskRow, decode_masks, open_masks
from tpudet.detection.submission.mask_text import MaskError, UnpackedMasks, decode_mask
from tpudet.detection.types import DetectionTable

_LABELS_SHOWN = 5


def truth_masks(path: str, texts: MaskTexts, is_group_of: np.ndarray) -> list[Mask | None]:
    """The masks of the ground truth's boxes, None for no mask or an empty one.

    Args:
        path: of the ground truth.
        texts: of the G boxes of classes that are scored.
        is_group_of: [G] bool.

    Raises:
        TruthFileError: a string is not a mask of its size (the first ten are named), or no box has
            a mask and none is group-of.
        UserError: the masks together take too much memory.
    """
    by_line: dict[int, Mask | None] = {}  # an expanded box is one row
    bad: dict[int, str] = {}
    lines = texts.lines.tolist()
    num_letters = sum(map(len, dict(zip(lines, texts.texts, strict=True)).values()))
    unpacked = UnpackedMasks(path, num_letters)
    for text, (height, width), line in zip(texts.texts, texts.sizes.tolist(), lines, strict=True):
        if line in by_line:
            continue
        try:
            mask = decode_mask(text, height, width) if text else None
        except MaskError as error:
            bad[line] = str(error)
            mask = None
        if mask is not None:
            unpacked.add(mask)
        by_line[line] = mask if mask and mask_area(mask) else None
    masks = [by_line[line] for line in lines]
    if bad:
        shown = [f"  {path}, line {n}: Mask {why}" for n, why in sorted(bad.items())[:NUM_SHOWN]]
        raise TruthFileError(f"{len(bad)} bad masks:\n" + "\n".join(shown))
    if not is_group_of.any() and not any(masks):
        raise TruthFileError(
            f"{path}: no box of a class that is scored has a mask or is group-of; name a file with "
            "masks, or leave --masks out to score boxes"
        )
    return masks


def read_mask_predictions(
    path: str, labelled: LabelledTruth, *, skip_bad: bool = False
) -> tuple[DetectionTable, ReadCounts]:
    """Reads the predictions of a submission of masks whose class is verified on their image.

    Boxes are around the masks, in 0..1 of the image. Empty masks have no box and are left out.

    Args:
        path: `ImageId,ImageWidth,ImageHeight,PredictionString`, a prediction being
            `MID score mask`.
        labelled: the ground truth.
        skip_bad: whether bad rows are left out and counted.

    Raises:
        SubmissionError: it is not such a file, or none of its images is in the ground truth.
        BadRowsError: there are bad rows and `skip_bad` is False.
        UserError: the masks together take too much memory.
    """
    sizes = _truth_sizes(labelled)
    counted = _Counted(labelled)
    with open_masks(path) as file:
        names = file.image_ids()
        ids = np.array([name.encode() for name in names] or [b""], "S")[: len(names)]
        images = image_rows(path, ids, labelled)
        for name, image in zip(names, images.tolist(), strict=True):
            row = file.row(name)
            if row is None:
                continue
            try:
                predictions = _read_row(row, sizes.get(image))
            except MaskError as error:
                file.refuse(row.line, str(error))
                continue
            for label, score, mask in predictions:
                file.unpacked.add(mask)
                counted.add(image, label, score, mask)
        bad = file.bad
    if bad.total and not skip_bad:
        raise BadRowsError(bad)
    known = images[images >= 0]
    return counted.predictions(), ReadCounts(
        images=len(names),
        images_elsewhere=len(names) - len(known),
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
        elif mask_area(mask):
            self._found.append((image, mask_box(mask), score, class_id))
            self._masks.append(mask)

    def predictions(self) -> DetectionTable:
        """All predictions that count."""
        found = self._found
        images, boxes, scores, classes = zip(*found, strict=True) if found else ((),) * 4
        return DetectionTable(
            np.array(images, np.int64),
            np.array(boxes, np.float64).reshape(-1, 4),
            np.array(scores, np.float64),
            np.array(classes, np.int64),
            self._masks,
        )

    def describe_unknown(self) -> str:
        """The number of predictions with unknown labels, in words; empty if there are none."""
        labels = +self._unknown
        shown = ", ".join(list(labels)[:_LABELS_SHOWN])
        what = "predictions ignored, of labels that are not classes"
        return f"{labels.total()} {what}: {shown}" if labels else ""


def score_masks(
    truth: ChallengeTruth, masks: Sequence[Mask | None], detections: DetectionTable
) -> Scored:
    """Matches detections, which have masks, with the ground truth and its masks."""
    if detections.masks is None:
        raise ValueError("the detections have no masks")
    has_mask = np.array([mask is not None for mask in masks], bool)
    rows = countable_rows(truth, detections)
    keys, boxes = image_class_keys(truth, detections, rows), detections.boxes[rows]
    found = [detections.masks[row] for row in rows.tolist()]
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


def _read_row(row: MaskRow, truth_size: tuple[int, int] | None) -> list[tuple[str, float, Mask]]:
    """The (label, score, mask) of a row.

    Raises:
        MaskError: the row is not usable.
    """
    width, height = row.width, row.height
    if row.predictions and truth_size and truth_size != (height, width):
        raise MaskError(
            f"its masks are {width} x {height}, those of the ground truth {truth_size[1]} x "
            f"{truth_size[0]}"
        )
    decoded = decode_masks(row, range(len(row.predictions)))
    return [(label, score, mask) for (label, score, _), mask in decoded]


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
