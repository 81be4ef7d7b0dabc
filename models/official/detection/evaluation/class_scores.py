"""Scores of each class at an IoU of 0.5: precision, recall and F1 by score, confusions.

Curves are given at the 101 recalls of COCO. Precision is interpolated as there: the highest of any
recall from this one on. The point of the best F1 lies on that curve: within 0.01 of its recall, and
exact in curves of `sample_curve` where a class has at most 100 instances. Curves of hotcoco miss a
recall such as 0.35 there, which is less than its neighbour in RECALLS by a rounding error.
"""

from typing import NamedTuple

import numpy as np

NOTHING = "(nothing)"  # in a confusion matrix: no object, or no prediction
RECALLS = np.linspace(0, 1, 101)
_ROUNDING = 1e-9  # above the error of a share: 0.35 of RECALLS is more than 35 / 100


class ClassScores(NamedTuple):
    """The scores of C classes; a class without an instance has NaN in place of every share."""

    images: np.ndarray  # [C] int64, with an instance
    instances: np.ndarray  # [C] int64, without crowds
    ap50: np.ndarray  # [C] float64, by the rules of the evaluation
    precisions: np.ndarray  # [C, 101] at RECALLS, interpolated; 0 beyond the highest recall
    thresholds: np.ndarray  # [C, 101] the score that reaches this recall; 0 beyond the highest


class BestPoints(NamedTuple):
    """The points of highest F1 of C classes; NaN for a class without an instance."""

    f1: np.ndarray  # [C] float64
    precision: np.ndarray  # [C]
    recall: np.ndarray  # [C]
    threshold: np.ndarray  # [C] detections of this score or more are counted


def sample_curve(
    scores: np.ndarray, is_true: np.ndarray, num_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """Interpolated precision and score threshold of one class at RECALLS, [101] each.

    Args:
        scores: [n], in descending order.
        is_true: [n] bool.
        num_instances: from 1.
    """
    num_found = np.cumsum(is_true)
    precision = num_found / np.arange(1, len(scores) + 1)
    interpolated = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(num_found / num_instances, RECALLS - _ROUNDING, side="left")
    is_reached = places < len(scores)
    places = places[is_reached]
    found = np.zeros((2, len(RECALLS)))
    found[:, is_reached] = interpolated[places], scores[places]
    return found[0], found[1]


def reached_recalls(found: ClassScores) -> np.ndarray:
    """[C, 101] the recall at each threshold: the share of RECALLS or the next whole instance."""
    counts = np.maximum(found.instances, 1)[:, None]
    # The sum turns -0.0 into 0.0.
    recalls = np.ceil(RECALLS * counts - _ROUNDING) / counts + 0.0
    return np.where(found.thresholds > 0, recalls, 0.0)


def f1_scores(found: ClassScores) -> np.ndarray:
    """[C, 101] the harmonic mean of precision and recall; NaN for a class without an instance."""
    recalls = reached_recalls(found)
    total = found.precisions + recalls
    product = 2 * found.precisions * recalls
    return np.divide(product, total, out=np.zeros_like(total), where=total != 0)


def best_points(found: ClassScores) -> BestPoints:
    """The threshold of the best F1 of each class; the higher one of equals."""
    f1 = f1_scores(found)
    places = np.where(np.isnan(f1).all(axis=1), 0, np.argmax(np.nan_to_num(f1, nan=-1.0), axis=1))
    rows = np.arange(len(places))
    lacks = found.instances == 0
    columns = (f1, found.precisions, reached_recalls(found), found.thresholds)
    return BestPoints(*(np.where(lacks, np.nan, column[rows, places]) for column in columns))


def f1_by_threshold(found: ClassScores, thresholds: np.ndarray) -> np.ndarray:
    """[C, T] the F1 of each class if only scores of a threshold or more count.

    Args:
        found: the scores of the classes.
        thresholds: [T] in 0..1.
    """
    f1, curves = f1_scores(found), []
    for row, own in zip(f1, found.thresholds, strict=True):
        # Thresholds fall as recall grows: the last that is high enough has the highest recall.
        reached = np.where(own > 0, own, -1.0)
        last = np.searchsorted(-reached, -thresholds, side="right") - 1
        curves.append(np.where(last >= 0, row[np.maximum(last, 0)], 0.0 * row[0]))
    return np.array(curves)


def best_threshold(found: ClassScores) -> float:
    """The score with the highest mean F1 over classes with instances, in hundredths.

    The highest of equals; 0.5 where nothing is found.
    """
    has_any = found.instances > 0
    if not has_any.any():
        return 0.5
    thresholds = np.arange(99, 0, -1) / 100
    means = f1_by_threshold(found, thresholds)[has_any].mean(axis=0)
    return float(thresholds[int(means.argmax())]) if means.max() > 0 else 0.5
