"""What became of every prediction and every true object, and which images are the worst.

Matching is that of the Open Images Challenge (`evaluation/open_images.py`): per image and class,
by falling score, a prediction looks only at the true box with which its IoU is highest; at 0.5 or
more, and that box still free, the object is found. What is not, but lies by half or more of its
area in a group region of its class, counts neither way. The rest is false, and true objects that
nothing found are missed; group regions are never missed.

The badness of an image is its number of missed objects plus the sum of the scores of its false
predictions: 2 missed and false ones of 0.9 and 0.4 make 3.3.
"""

from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.open_images.metric import (
    MIN_OVERLAP,
    ChallengeTruth,
    Overlap,
    assign,
    best_boxes,
    keys_of,
)
from tpudet.detection.inspection.objects import Objects
from tpudet.detection.types import ImageDetections

# What a prediction is. Of a false one the first that fits, in this order.
FOUND, IGNORED, DUPLICATE, WRONG_CLASS, BADLY_PLACED, NOTHING_THERE = range(6)
FAULT_NAMES = {
    DUPLICATE: "duplicate",
    WRONG_CLASS: "wrong class",
    BADLY_PLACED: "badly placed",
    NOTHING_THERE: "nothing there",
}
_MIN_PLACED = 0.1  # IoU from which a prediction means an object of its class, though not well


class Outcomes(NamedTuple):
    """Of D predictions and G true objects on the same I images."""

    kinds: np.ndarray  # [D] int64, of the numbers above
    overlaps: np.ndarray  # [D] float64, highest IoU with a true object of its class
    confused_with: np.ndarray  # [D] int64, WRONG_CLASS: which true object; else -1
    is_missed: np.ndarray  # [G] bool
    badness: np.ndarray  # [I] float64

    @property
    def is_false(self) -> np.ndarray:
        """[D] bool."""
        return self.kinds >= DUPLICATE


def find_outcomes(found: Objects, truth: Objects, num_classes: int) -> Outcomes:
    """Compares predictions with the ground truth of the same images.

    Args:
        found: predictions that take part.
        truth: with the same `image_ids`.
        num_classes: C.
    """
    table = _as_truth(truth, truth.class_ids, num_classes)
    detections = ImageDetections(found.images, found.boxes, found.scores, found.class_ids)
    rows = np.arange(len(found.images))
    keys = keys_of(table, detections, rows)
    iou = best_boxes(table, ~truth.is_group, keys, found.boxes, over_detection=False)
    in_group = best_boxes(table, truth.is_group, keys, found.boxes, over_detection=True)
    nothing = Overlap(np.full(len(rows), -1), np.zeros(len(rows)))
    is_found, _ = assign(iou, nothing)  # rows are by falling score within an image
    other = _best_of_any_class(found, truth)
    kinds = np.full(len(rows), NOTHING_THERE)
    kinds[iou.overlap >= _MIN_PLACED] = BADLY_PLACED
    kinds[other.overlap >= MIN_OVERLAP] = WRONG_CLASS
    kinds[iou.overlap >= MIN_OVERLAP] = DUPLICATE
    kinds[in_group.reached() >= 0] = IGNORED
    kinds[is_found] = FOUND
    is_missed = ~truth.is_group
    is_missed[iou.best[is_found]] = False
    num_images = len(found.image_ids)
    false_scores = np.where(kinds >= DUPLICATE, found.scores, 0.0)
    badness = np.bincount(found.images, weights=false_scores, minlength=num_images)
    badness += np.bincount(truth.images[is_missed], minlength=num_images)
    confused = np.where(kinds == WRONG_CLASS, other.best, -1)
    return Outcomes(kinds, iou.overlap, confused, is_missed, badness)


def rank_worst(outcomes: Outcomes, count: int) -> np.ndarray:
    """Rows of the `count` images of the highest badness, from the worst; equal ones by id.

    Images without any fault are not among them.
    """
    order = np.argsort(-outcomes.badness, kind="stable")[:count]
    return order[outcomes.badness[order] > 0]


def _as_truth(truth: Objects, classes: np.ndarray, num_classes: int) -> ChallengeTruth:
    verified = np.broadcast_to(np.True_, (len(truth.image_ids), num_classes))
    return ChallengeTruth(truth.images, classes, truth.boxes, truth.is_group, verified)


def _best_of_any_class(found: Objects, truth: Objects) -> Overlap:
    """Whose overlap is with the best true object whatever its class is."""
    ones = np.ones(len(truth.images), np.int32)
    table = _as_truth(truth, ones, 1)
    return best_boxes(table, ~truth.is_group, found.images, found.boxes, over_detection=False)
