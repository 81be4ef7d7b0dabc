"""Metrics of the class probabilities of many images; NumPy."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tpudet.classification.types import LABEL_THRESHOLD

FEW_CLASSES = 5  # of five classes or fewer, every label is among the five best
_SMALLEST = 1e-15  # probability for the logarithm, as Kaggle's


def single_label_metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns the metrics of images that are each of one class.

    Args:
        probabilities: [n, C].
        labels: [n] int, channels, from 0.

    Returns:
        "top1"; "top5", with more than five classes; "macro_f1", see `class_table`; and
        "negative_loss", minus the mean cross-entropy, so that higher is better as for the others.
    """
    rows = np.arange(len(labels))
    own = probabilities[rows, labels][:, None]
    # Classes that tie with the label count as better if they come first, as argmax has it.
    columns = np.arange(probabilities.shape[1])
    better = (probabilities > own) | ((probabilities == own) & (columns < labels[:, None]))
    rank = better.sum(axis=1)
    metrics = {"top1": float(np.mean(rank < 1))}
    if probabilities.shape[1] > FEW_CLASSES:
        metrics["top5"] = float(np.mean(rank < 5))
    matrix = confusion_matrix(probabilities.argmax(axis=1), labels, probabilities.shape[1])
    metrics["macro_f1"] = macro_f1(matrix)
    metrics["negative_loss"] = float(np.mean(np.log(np.maximum(own, _SMALLEST))))
    return metrics


def multi_label_metrics(
    probabilities: np.ndarray, targets: np.ndarray, *, class_weights: Sequence[float]
) -> dict[str, float]:
    """Returns the metrics of images that may be of several classes.

    Args:
        probabilities: [n, C].
        targets: [n, C], 0 or 1.
        class_weights: C weights of the loss; empty: all classes count alike.

    Returns:
        "macro_f1", the mean over classes that occur; "micro_f1", of all decisions together; "top1",
        the share of images whose every decision is right; and "negative_loss", minus the weighted
        mean of the binary cross-entropies.
    """
    found, true = probabilities >= LABEL_THRESHOLD, targets >= LABEL_THRESHOLD
    hits = (found & true).sum(axis=0)
    totals = found.sum(axis=0) + true.sum(axis=0)
    occurs = true.any(axis=0)
    scores = 2.0 * hits / np.maximum(totals, 1)
    weights = np.asarray(class_weights or np.ones(probabilities.shape[1]))
    clipped = np.clip(probabilities.astype(np.float64), _SMALLEST, 1.0 - _SMALLEST)
    logs = targets * np.log(clipped) + (1.0 - targets) * np.log1p(-clipped)
    return {
        "top1": float(np.mean((found == true).all(axis=1))),
        "macro_f1": float(scores[occurs].mean()) if occurs.any() else 0.0,
        "micro_f1": float(2.0 * hits.sum() / max(totals.sum(), 1)),
        "negative_loss": float(np.mean(logs @ weights / weights.sum())),
    }


def confusion_matrix(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts images by label (row) and prediction (column), [C, C] int64."""
    cells = labels.astype(np.int64) * num_classes + predicted
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def macro_f1(matrix: np.ndarray) -> float:
    """Returns the mean F1 over the classes that occur as a label or a prediction."""
    totals = matrix.sum(axis=0) + matrix.sum(axis=1)
    return float(np.mean(2.0 * np.diag(matrix)[totals > 0] / totals[totals > 0]))


def class_table(matrix: np.ndarray, class_names: Sequence[str]) -> pd.DataFrame:
    """Returns one row per class: images, recall, precision, F1, and what it is mostly taken for.

    A share of no images is NaN.

    Args:
        matrix: [C, C], see `confusion_matrix`.
        class_names: C names.
    """
    hits = np.diag(matrix)
    table = _class_table(hits, matrix.sum(axis=1), matrix.sum(axis=0), class_names)
    others = matrix - np.diag(hits)
    names = np.array(class_names, dtype=object)
    table["mostly_taken_for"] = np.where(others.any(axis=1), names[others.argmax(axis=1)], "")
    return table


def multi_label_class_table(
    probabilities: np.ndarray, targets: np.ndarray, class_names: Sequence[str]
) -> pd.DataFrame:
    """Returns one row per class: images, recall, precision, F1; a share of no images is NaN.

    Args:
        probabilities: [n, C].
        targets: [n, C], 0 or 1.
        class_names: C names.
    """
    found, true = probabilities >= LABEL_THRESHOLD, targets >= LABEL_THRESHOLD
    hits = (found & true).sum(axis=0)
    return _class_table(hits, true.sum(axis=0), found.sum(axis=0), class_names)


def _class_table(
    hits: np.ndarray, labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str]
) -> pd.DataFrame:
    with np.errstate(invalid="ignore"):
        return pd.DataFrame(
            {
                "class": np.array(class_names, dtype=object),
                "images": labels,
                "recall": hits / labels,
                "precision": hits / predictions,
                "f1": 2.0 * hits / (labels + predictions),
            }
        )


def is_wrong(probabilities: np.ndarray, targets: np.ndarray, *, is_single: bool) -> np.ndarray:
    """Returns which images are not of the predicted classes, [n] bool.

    Args:
        probabilities: [n, C].
        targets: [n, C], 0 or 1.
        is_single: whether each image is of one class, the most probable; else of all from 0.5 on.
    """
    if is_single:
        return probabilities.argmax(axis=1) != targets.argmax(axis=1)
    return ((probabilities >= LABEL_THRESHOLD) != (targets >= LABEL_THRESHOLD)).any(axis=1)
