"""Metrics against numbers that can be counted by hand."""

import numpy as np
import pytest

from tpudet.classification.evaluation.metrics import (
    class_table,
    confusion_matrix,
    is_wrong,
    macro_f1,
    multi_label_class_table,
    multi_label_metrics,
    single_label_metrics,
)

# Two images of class 0, one of 1, one of 2; predicted 0, 1, 1, 1.
PROBABILITIES = np.array([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.0, 0.6, 0.4]])
LABELS = np.array([0, 0, 1, 2])


def test_accuracy_f1_and_loss_of_four_images() -> None:
    """F1: class 0 has 2 / 3, class 1 has 2 / 4, class 2 has 0."""
    metrics = single_label_metrics(PROBABILITIES, LABELS)
    assert list(metrics) == ["top1", "macro_f1", "negative_loss"]  # three classes: no top5
    assert metrics["top1"] == 0.5
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 3)
    expected = (np.log(0.5) + np.log(0.2) + np.log(0.8) + np.log(0.4)) / 4
    assert metrics["negative_loss"] == pytest.approx(expected)


def test_top5_counts_the_five_best_and_ties_go_to_the_first_class() -> None:
    probabilities = np.tile(np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.05, 0.05]), (7, 1))
    metrics = single_label_metrics(probabilities, np.arange(7))
    assert metrics["top1"] == pytest.approx(1 / 7)  # class 1, as argmax has it
    assert metrics["top5"] == pytest.approx(5 / 7)


def test_the_class_table_says_what_a_class_is_taken_for() -> None:
    matrix = confusion_matrix(PROBABILITIES.argmax(axis=1), LABELS, 3)
    np.testing.assert_array_equal(matrix, [[1, 1, 0], [0, 1, 0], [0, 1, 0]])
    a, b, c = class_table(matrix, ["a", "b", "c"]).to_dict("records")
    assert list(a.values()) == ["a", 2, 0.5, 1.0, pytest.approx(2 / 3), "b"]
    assert b["precision"] == pytest.approx(1 / 3)
    assert np.isnan(c["precision"])
    assert b["mostly_taken_for"] == ""


def test_a_class_without_label_and_prediction_does_not_lower_the_f1() -> None:
    assert macro_f1(np.array([[2, 0, 0], [0, 3, 0], [0, 0, 0]])) == 1.0


def test_metrics_of_several_labels() -> None:
    """Decisions: image 0 has both right, image 1 misses class 1 and finds class 0 in vain."""
    probabilities = np.array([[0.9, 0.1], [0.6, 0.4]])
    targets = np.array([[1.0, 0.0], [0.0, 1.0]])
    metrics = multi_label_metrics(probabilities, targets, class_weights=(2.0, 1.0))
    assert metrics["top1"] == 0.5
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)
    assert metrics["micro_f1"] == pytest.approx(2 / 4)
    a, b = multi_label_class_table(probabilities, targets, ["a", "b"]).to_dict("records")
    assert list(a.values()) == ["a", 1, 1.0, 0.5, pytest.approx(2 / 3)]
    assert (b["images"], b["recall"], b["f1"]) == (1, 0.0, 0.0)
    assert np.isnan(b["precision"])
    np.testing.assert_array_equal(is_wrong(probabilities, targets, is_single=False), [False, True])
    logs = [2 * np.log(0.9) + np.log(0.9), 2 * np.log(0.4) + np.log(0.4)]
    assert metrics["negative_loss"] == pytest.approx(sum(logs) / 3 / 2)
