"""The metric of the Open Images Challenge: average precision at an overlap of 0.5, by its rules.

Only classes that are verified for an image are scored there. Per image and class, detections are
matched in descending order of score, equal ones in the order of the file:

1. A detection is compared only with the box, not a group-of one, with which its IoU is highest (the
   first of equals). At 0.5 or more, and if that box is still free, it is a true positive. It does
   not try another box.
2. Otherwise it is compared only with the group-of box that covers most of it. If that is half of it
   or more, it is absorbed: all detections that one box absorbs count once, as one true positive
   with the highest of their scores.
3. The rest are false positives.

Because a detection never tries a second box, matching needs no loop over detections: a box goes to
the first of its candidates. hotcoco's `oid_style` is not used for this: like COCO it lets a
detection take the best box that is still *free*, and its AP has 101 points instead of all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.types import DetectionTable

MIN_OVERLAP = 0.5
MAX_PER_IMAGE_AND_CLASS = 10_000  # the published scorer takes no more
_PAIRS_AT_ONCE = 1 << 18  # of a detection and a box: about 2 MB per array


class ChallengeTruth(NamedTuple):
    """Expanded ground truth: I images, C classes, G boxes.

    Boxes have the corner order and the unit of the detections.
    """

    image_indices: np.ndarray  # [G] int, from 0
    classes: np.ndarray  # [G] int, 1-based
    boxes: np.ndarray  # [G, 4] float64
    is_group_of: np.ndarray  # [G] bool
    verified: np.ndarray  # [I, C] bool, whether a class (column class - 1) is scored on an image


class Overlap(NamedTuple):
    """The best box of each of n detections."""

    best: np.ndarray  # [n] int64, row in the ground truth; -1 if there is none
    overlap: np.ndarray  # [n] float64 in 0..1

    def reached(self) -> np.ndarray:
        """[n] int64: `best` if the overlap is MIN_OVERLAP or more, else -1."""
        return np.where(self.overlap >= MIN_OVERLAP, self.best, -1)


class Scored(NamedTuple):
    """The S detections that count, by class in descending order of score, and the N instances."""

    classes: np.ndarray  # [S] int32, 1-based
    image_indices: np.ndarray  # [S] int32
    scores: np.ndarray  # [S] float64
    is_true: np.ndarray  # [S] bool
    instance_classes: np.ndarray  # [N] int32; recall is of these
    instance_images: np.ndarray  # [N] int32
    num_ignored: np.ndarray  # [C] int64, absorbed detections, which do not count
    num_images: int
    num_classes: int


def expand(labels: np.ndarray, relatives: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Repeats rows for the relatives of their labels: ancestors, or descendants.

    Args:
        labels: [n] int from 0.
        relatives: of each label, each relative once.

    Returns:
        [m] rows of `labels`, and [m] labels: first the n rows themselves, then the repeats.
    """
    counts = np.array([len(found) for found in relatives], np.int64)
    flat = np.array([one for found in relatives for one in found], np.int64)
    starts = np.cumsum(counts) - counts
    repeats = counts[labels]
    rows = np.repeat(np.arange(len(labels)), repeats)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    found = flat[starts[labels[rows]] + places]
    return np.concatenate([np.arange(len(labels)), rows]), np.concatenate([labels, found])


def score_boxes(truth: ChallengeTruth, detections: DetectionTable) -> Scored:
    """Matches boxes with the ground truth by the rules of this module."""
    rows = countable_rows(truth, detections)
    keys = image_class_keys(truth, detections, rows)
    boxes = detections.boxes[rows].astype(np.float64)
    iou = best_boxes(truth, ~truth.is_group_of, keys, boxes, over_detection=False)
    ioa = best_boxes(truth, truth.is_group_of, keys, boxes, over_detection=True)
    is_true, is_ignored = assign(iou, ioa)
    is_instance = np.ones(len(truth.classes), bool)
    return collect(truth, detections, rows, is_true, is_ignored, is_instance)


def countable_rows(truth: ChallengeTruth, detections: DetectionTable) -> np.ndarray:
    """[n] int64: the detections to match, in descending order of score.

    Left out are classes that are not verified for their image, boxes whose end is before their
    start, and all but the 10,000 best of an image and class.
    """
    boxes = detections.boxes
    is_valid = truth.verified[detections.image_indices, detections.classes - 1]
    is_valid &= (boxes[:, 2:] >= boxes[:, :2]).all(axis=1)
    rows = np.flatnonzero(is_valid)
    rows = rows[np.argsort(-detections.scores[rows], kind="stable")]
    num_of_image = np.bincount(detections.image_indices[rows], minlength=1)
    if num_of_image.max() > MAX_PER_IMAGE_AND_CLASS:
        keys = image_class_keys(truth, detections, rows)
        rows = first_of_keys(rows, keys, MAX_PER_IMAGE_AND_CLASS)
    return rows


def first_of_keys(rows: np.ndarray, keys: np.ndarray, limit: int) -> np.ndarray:
    """Returns the first `limit` rows of each key, in their order.

    Args:
        rows: [n].
        keys: [n], of each row.
        limit: at least 1.
    """
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    ranks = np.arange(len(rows)) - np.searchsorted(in_order, in_order)
    return rows[np.sort(order[ranks < limit])]


def image_class_keys(
    truth: ChallengeTruth, table: DetectionTable | ChallengeTruth, rows: np.ndarray
) -> np.ndarray:
    """[n] int64: a number per image and class, of each of the rows (indices or bool)."""
    num_classes = truth.verified.shape[1]
    return table.image_indices[rows].astype(np.int64) * num_classes + table.classes[rows] - 1


def best_boxes(
    truth: ChallengeTruth,
    chosen: np.ndarray,
    keys: np.ndarray,
    boxes: np.ndarray,
    *,
    over_detection: bool,
) -> Overlap:
    """Finds the chosen box of the same image and class that overlaps each detection most.

    Args:
        truth: the ground truth.
        chosen: [G] bool.
        keys: [n] from `image_class_keys`.
        boxes: [n, 4].
        over_detection: whether the overlap is the intersection over the area of the detection;
            otherwise over that of the union. 0 where that area is 0.
    """
    found = Overlap(np.full(len(keys), -1), np.zeros(len(keys)))
    truth_rows = np.flatnonzero(chosen)
    truth_keys = image_class_keys(truth, truth, truth_rows)
    order = np.argsort(truth_keys, kind="stable")
    truth_rows, truth_keys = truth_rows[order], truth_keys[order]
    groups, starts, counts = np.unique(truth_keys, return_index=True, return_counts=True)
    if not len(groups):
        return found
    group = np.minimum(np.searchsorted(groups, keys), len(groups) - 1)
    rows = np.flatnonzero(groups[group] == keys)
    group = group[rows]
    # One row per side: contiguous arrays are several times faster.
    truth_sides = np.ascontiguousarray(truth.boxes[truth_rows].T, np.float64)
    sides = np.ascontiguousarray(boxes[rows].T, np.float64)
    ends = np.cumsum(counts[group])
    first = 0
    while first < len(rows):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _PAIRS_AT_ONCE, "right")))
        repeats = counts[group[first:last]]
        segments = np.cumsum(repeats) - repeats
        detection = np.repeat(np.arange(first, last), repeats)
        place = np.arange(len(detection)) - np.repeat(segments, repeats)
        place += starts[group[detection]]
        overlaps = _overlap(sides[:, detection], truth_sides[:, place], over_detection)
        best = np.maximum.reduceat(overlaps, segments)
        is_best = np.flatnonzero(overlaps == np.repeat(best, repeats))[::-1]
        found.best[rows[detection[is_best]]] = truth_rows[place[is_best]]  # the first is last
        found.overlap[rows[first:last]] = best
        first = last
    return found


def assign(
    iou: Overlap, ioa: Overlap, *ignoring: tuple[Overlap, Overlap]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of n detections are true, and which ignored; [n] bool each.

    The detections are in descending order of score.

    Args:
        iou: with boxes that are not group-of.
        ioa: with group-of boxes, over the area of the detection.
        ignoring: more pairs of the two; unmatched detections that match there are ignored.
    """
    is_true = _first_of_each(iou.reached())
    absorbed = np.where(is_true, -1, ioa.reached())
    is_counted = _first_of_each(absorbed)
    is_true |= is_counted
    is_ignored = (absorbed >= 0) & ~is_counted
    for ignoring_iou, ignoring_ioa in ignoring:
        is_done = is_true | is_ignored
        is_ignored |= _first_of_each(np.where(is_done, -1, ignoring_iou.reached()))
        is_ignored |= ~is_done & (ignoring_ioa.reached() >= 0)
    return is_true, is_ignored


def collect(
    truth: ChallengeTruth,
    detections: DetectionTable,
    rows: np.ndarray,
    is_true: np.ndarray,
    is_ignored: np.ndarray,
    is_instance: np.ndarray,
) -> Scored:
    """Sorts the result of matching for average precision.

    Args:
        truth: the ground truth.
        detections: those of `rows` were matched, in descending order of score.
        rows: [n].
        is_true: [n] bool.
        is_ignored: [n] bool.
        is_instance: [G] bool, the boxes that count for recall.
    """
    num_images, num_classes = truth.verified.shape
    ignored = detections.classes[rows[is_ignored]]
    rows, is_true = rows[~is_ignored], is_true[~is_ignored]
    order = np.argsort(detections.classes[rows], kind="stable")
    rows = rows[order]
    return Scored(
        classes=detections.classes[rows].astype(np.int32),
        image_indices=detections.image_indices[rows].astype(np.int32),
        scores=detections.scores[rows].astype(np.float64),
        is_true=is_true[order],
        instance_classes=truth.classes[is_instance].astype(np.int32),
        instance_images=truth.image_indices[is_instance].astype(np.int32),
        num_ignored=np.bincount(ignored, minlength=num_classes + 1)[1:],
        num_images=num_images,
        num_classes=num_classes,
    )


def average_precisions(scored: Scored, image_weights: np.ndarray | None = None) -> np.ndarray:
    """[C] float64: the area under the precision-recall curve of each class, all points.

    Precision is first made monotone from the right. A class without any instance has NaN; `mean
    average precision` is the mean of the others.

    Args:
        scored: the matched detections.
        image_weights: [I] how often each image counts; once by default.
    """
    if image_weights is None:
        image_weights = np.ones(scored.num_images)
    num_classes = scored.num_classes
    weights = image_weights[scored.image_indices].astype(np.float64)
    instances = np.bincount(
        scored.instance_classes,
        weights=image_weights[scored.instance_images],
        minlength=num_classes + 1,
    )[1:]
    places = np.flatnonzero(scored.is_true)
    classes, weights_true = scored.classes[places] - 1, weights[places]
    num_found = _cumulative_by_class(weights_true, classes, np.arange(len(places)), num_classes)
    num_all = _cumulative_by_class(weights, scored.classes - 1, places, num_classes)
    precision = num_found / np.where(num_all > 0, num_all, 1.0)
    # Classes rise, so from the right each class starts above all earlier ones.
    offset = 2.0 * (num_classes - classes)
    monotone = np.maximum.accumulate((precision + offset)[::-1])[::-1] - offset
    area = np.bincount(classes, weights=monotone * weights_true, minlength=num_classes)
    return np.divide(area, instances, out=np.full(num_classes, np.nan), where=instances > 0)


def precision_recall(scored: Scored, class_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall of a class after each of its n detections: two arrays [n]."""
    first, last = np.searchsorted(scored.classes, [class_id, class_id + 1])
    is_true = scored.is_true[first:last]
    num_found = np.cumsum(is_true)
    num_instances = np.count_nonzero(scored.instance_classes == class_id)
    return num_found / np.arange(1, len(is_true) + 1), num_found / max(num_instances, 1)


def _overlap(boxes: np.ndarray, others: np.ndarray, over_detection: bool) -> np.ndarray:
    """[n] overlaps of boxes [4, n] and others [4, n]; one row per side, unlike `numpy_boxes`."""
    heights = np.minimum(boxes[2], others[2]) - np.maximum(boxes[0], others[0])
    widths = np.minimum(boxes[3], others[3]) - np.maximum(boxes[1], others[1])
    intersection = np.maximum(heights, 0) * np.maximum(widths, 0)
    total = (boxes[2] - boxes[0]) * (boxes[3] - boxes[1])
    if not over_detection:
        total += (others[2] - others[0]) * (others[3] - others[1]) - intersection
    return np.divide(intersection, total, out=np.zeros(len(total)), where=total > 0)


def _first_of_each(targets: np.ndarray) -> np.ndarray:
    """[n] bool: whether a row is the first that has its target; those with -1 have none."""
    is_first = np.zeros(len(targets), bool)
    rows = np.flatnonzero(targets >= 0)
    is_first[rows[np.unique(targets[rows], return_index=True)[1]]] = True
    return is_first


def _cumulative_by_class(
    values: np.ndarray, classes: np.ndarray, places: np.ndarray, num_classes: int
) -> np.ndarray:
    """The sum of `values` within the class up to each of the places, included; classes rise."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    before = sums[np.searchsorted(classes, np.arange(num_classes))]
    return sums[places + 1] - before[classes[places]]
