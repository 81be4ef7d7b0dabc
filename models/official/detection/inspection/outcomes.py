"""The outcome of every prediction and ground-truth object, and the worst images.

Matching is that of the Open Images Challenge (`evaluation.open_images.metric`): per image and
class, in descending order of score, a prediction is compared only with the ground-truth box of the
highest IoU; at 0.5 or more, and if that box is still free, the object is found. Other predictions
with half or more of their area in a group region of their class are ignored. The rest are false,
and ground-truth objects that no prediction finds are missed; group regions are never missed.

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
    image_class_keys,
)
from tpudet.detection.inspection.objects import Objects
from tpudet.detection.types import DetectionTable

# The kinds of predictions; a false one is the first kind that fits, in this order.
FOUND, IGNORED, DUPLICATE, WRONG_CLASS, BADLY_PLACED, NO_OBJECT = range(6)
FAULT_NAMES = {
    DUPLICATE: "duplicate",
    WRONG_CLASS: "wrong class",
    BADLY_PLACED: "badly placed",
    NO_OBJECT: "no object",
}
_MIN_PLACED = 0.1  # IoU from which a prediction is badly placed instead of without object


class Outcomes(NamedTuple):
    """The outcomes of D predictions and G ground-truth objects on the same I images."""

    kinds: np.ndarray  # [D] int64, of the numbers above
    overlaps: np.ndarray  # [D] float64, highest IoU with a ground-truth object of its class
    confused_with: np.ndarray  # [D] int64, WRONG_CLASS: the ground-truth object; else -1
    is_missed: np.ndarray  # [G] bool
    badness: np.ndarray  # [I] float64

    @property
    def is_false(self) -> np.ndarray:
        """[D] bool."""
        return self.kinds >= DUPLICATE


def find_outcomes(predicted: Objects, ground_truth: Objects, num_classes: int) -> Outcomes:
    """Compares predictions with the ground truth of the same images.

    Args:
        predicted: the predictions to compare.
        ground_truth: with the same `image_ids`.
        num_classes: C.
    """
    table = _as_challenge_truth(ground_truth, ground_truth.class_ids, num_classes)
    detections = DetectionTable(
        predicted.images, predicted.boxes, predicted.scores, predicted.class_ids
    )
    rows = np.arange(len(predicted.images))
    keys = image_class_keys(table, detections, rows)
    iou = best_boxes(table, ~ground_truth.is_group, keys, predicted.boxes, over_detection=False)
    in_group = best_boxes(table, ground_truth.is_group, keys, predicted.boxes, over_detection=True)
    nothing = Overlap(np.full(len(rows), -1), np.zeros(len(rows)))
    is_found, _ = assign(iou, nothing)  # rows are in descending order of score within an image
    other = _best_of_any_class(predicted, ground_truth)
    kinds = np.full(len(rows), NO_OBJECT)
    kinds[iou.overlap >= _MIN_PLACED] = BADLY_PLACED
    kinds[other.overlap >= MIN_OVERLAP] = WRONG_CLASS
    kinds[iou.overlap >= MIN_OVERLAP] = DUPLICATE
    kinds[in_group.reached() >= 0] = IGNORED
    kinds[is_found] = FOUND
    is_missed = ~ground_truth.is_group
    is_missed[iou.best[is_found]] = False
    num_images = len(predicted.image_ids)
    false_scores = np.where(kinds >= DUPLICATE, predicted.scores, 0.0)
    badness = np.bincount(predicted.images, weights=false_scores, minlength=num_images)
    badness += np.bincount(ground_truth.images[is_missed], minlength=num_images)
    confused = np.where(kinds == WRONG_CLASS, other.best, -1)
    return Outcomes(kinds, iou.overlap, confused, is_missed, badness)


def rank_worst(outcomes: Outcomes, count: int) -> np.ndarray:
    """Rows of the `count` images of the highest badness, from the worst; equal ones by id.

    Images without a fault are left out.
    """
    order = np.argsort(-outcomes.badness, kind="stable")[:count]
    return order[outcomes.badness[order] > 0]


def _as_challenge_truth(
    ground_truth: Objects, classes: np.ndarray, num_classes: int
) -> ChallengeTruth:
    verified = np.broadcast_to(np.True_, (len(ground_truth.image_ids), num_classes))
    return ChallengeTruth(
        ground_truth.images, classes, ground_truth.boxes, ground_truth.is_group, verified
    )


def _best_of_any_class(predicted: Objects, ground_truth: Objects) -> Overlap:
    """The overlap of each prediction with the best object of any class."""
    ones = np.ones(len(ground_truth.images), np.int32)
    table = _as_challenge_truth(ground_truth, ones, 1)
    return best_boxes(
        table, ~ground_truth.is_group, predicted.images, predicted.boxes, over_detection=False
    )
