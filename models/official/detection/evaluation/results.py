"""The results of one evaluation of a split, for its log and its report."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.class_scores import ClassScores, best_threshold
from tpudet.detection.evaluation.class_table import ClassRow, class_rows
from tpudet.detection.evaluation.confusions import count_confusions
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.types import DetectionTable


class EvaluatedSplit(NamedTuple):
    """The results of one evaluation of a split with C classes."""

    split: str
    step: int
    metrics: Mapping[str, float]
    class_names: Sequence[str]
    rows: Sequence[ClassRow]  # C
    scores: ClassScores
    confusions: np.ndarray  # [C + 1, C + 1] truth by predicted class, see `count_confusions`
    min_score: float  # of the predictions among the confusions
    images: np.ndarray | None  # [h, w, 3] uint8, drawn; None if none are wanted


def collect_results(
    truth: GroundTruth,
    detections: DetectionTable,
    *,
    split: str,
    step: int,
    metrics: Mapping[str, float],
    scores: ClassScores,
    class_names: Sequence[str],
    images: np.ndarray | None,
) -> EvaluatedSplit:
    """Adds the table by class, and the confusions at the score of the best mean F1.

    Args:
        truth: of all images of the split.
        detections: boxes in pixels of the images.
        split: its name.
        step: of the checkpoint.
        metrics: of the rules.
        scores: of the classes, by the rules.
        class_names: C names.
        images: the drawn images.
    """
    min_score = best_threshold(scores)
    return EvaluatedSplit(
        split=split,
        step=step,
        metrics=metrics,
        class_names=class_names,
        rows=class_rows(scores, metrics, class_names),
        scores=scores,
        confusions=count_confusions(truth, detections, len(class_names), min_score=min_score),
        min_score=min_score,
        images=images,
    )
