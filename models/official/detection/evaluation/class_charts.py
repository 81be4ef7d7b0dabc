"""Charts of an evaluation by class: precision and recall, F1 by score, confusions."""

from collections.abc import Sequence

import numpy as np

from tpudet.detection.evaluation.class_scores import (
    NOTHING,
    RECALLS,
    ClassScores,
    f1_by_threshold,
)
from tpudet.trainkit.pages.charts import MAX_NAMES
from tpudet.trainkit.pages.curves import Chart, Line, confusion_matrix_chart, line_chart

MEAN = "mean of all classes"
_THRESHOLDS = np.linspace(0, 1, 201)


def shown_classes(found: ClassScores) -> np.ndarray:
    """[n] rows of the classes with the most instances, as many as a chart can name."""
    rows = np.argsort(-found.instances, kind="stable")[:MAX_NAMES]
    return rows[found.instances[rows] > 0]


def precision_recall_chart(found: ClassScores, class_names: Sequence[str]) -> Chart:
    """Charts interpolated precision over recall at an IoU of 0.5, and its mean."""
    return _chart(
        found,
        class_names,
        x=RECALLS,
        values=found.precisions,
        name="precision by recall",
        labels=("recall", "precision"),
    )


def f1_chart(found: ClassScores, class_names: Sequence[str]) -> Chart:
    """Charts the F1 at an IoU of 0.5 by the score from which detections count, and its mean."""
    return _chart(
        found,
        class_names,
        x=_THRESHOLDS,
        values=f1_by_threshold(found, _THRESHOLDS),
        name="F1 by score",
        labels=("lowest score that counts", "F1"),
    )


def confusion_chart(
    confusions: np.ndarray, found: ClassScores, class_names: Sequence[str]
) -> Chart:
    """Charts the confusions of the classes with the most instances, and of NOTHING.

    Args:
        confusions: [C + 1, C + 1] truth by predicted class.
        found: of the C classes.
        class_names: C names.
    """
    chosen = [*sorted(shown_classes(found).tolist()), len(class_names)]
    names = [*class_names, NOTHING]
    shown = [names[row] for row in chosen]
    return confusion_matrix_chart(confusions[np.ix_(chosen, chosen)], shown)


def _chart(
    found: ClassScores,
    class_names: Sequence[str],
    *,
    x: np.ndarray,
    values: np.ndarray,
    name: str,
    labels: tuple[str, str],
) -> Chart:
    has_any = found.instances > 0
    shown = shown_classes(found)
    lines = {class_names[int(row)]: Line(x, values[row]) for row in shown}
    if has_any.any():
        mean = values[has_any].mean(axis=0)
        lines[MEAN] = Line(x, mean, is_emphasized=True)
    return line_chart(
        lines, name=name, xlabel=labels[0], ylabel=labels[1], xlimits=(0, 1), ylimits=(0, 1.01)
    )
