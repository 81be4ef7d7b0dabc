"""Predictions of a split that cannot be scored, on devices that only hand batches through."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.evaluation.report import EvaluatedSplit
from tpudet.classification.evaluation.split import SplitEvaluation, SplitPredictions
from tpudet.classification.modeling.config import SigmoidLossConfig, SoftmaxLossConfig
from tpudet.classification.types import Batch, Predictions
from tpudet.trainkit.errors import UserError

PROBABILITIES = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], np.float32)
UNLABELLED = np.zeros_like(PROBABILITIES)


class OneProcess:
    process_index = 0

    def predict_batches(self, predict, dataset):
        return ((batch, predict(batch)) for batch in dataset)

    def gather(self, arrays):
        return [arrays]


def evaluation(
    probabilities: np.ndarray,
    targets: np.ndarray,
    loss: SoftmaxLossConfig | SigmoidLossConfig,
    report: Callable[[EvaluatedSplit], None] = lambda _: None,
) -> SplitEvaluation:
    count = len(targets)
    batch = Batch(np.zeros((count, 4, 4, 3), np.uint8), targets, np.arange(count))
    return SplitEvaluation(
        predict=lambda _: Predictions(probabilities),
        devices=cast(Any, OneProcess()),
        dataset=cast(tf.data.Dataset, [batch]),
        shards=[],
        num_images=count,
        loss=loss,
        split="test",
        class_names=["a", "b"],
        report=report,
    )


def test_images_without_labels_are_predicted_and_not_scored() -> None:
    built = evaluation(PROBABILITIES, UNLABELLED, SoftmaxLossConfig())
    np.testing.assert_array_equal(built.predictions().probabilities, PROBABILITIES)
    with pytest.raises(UserError, match="3 of 3 images of the split test have not exactly one"):
        built(step=1)


def test_one_label_in_a_split_of_several_labels_is_enough() -> None:
    targets = UNLABELLED.copy()
    targets[0, 0] = 1
    found = SplitPredictions(PROBABILITIES, targets, mistakes=[])
    metrics = evaluation(PROBABILITIES, targets, SigmoidLossConfig()).score(found)
    assert metrics["top1"] == pytest.approx(1 / 3)  # the first image; the others are called b


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("loss", [SoftmaxLossConfig(), SigmoidLossConfig()])
def test_probabilities_that_are_not_finite_count_as_wrong(
    value: float, loss: SoftmaxLossConfig | SigmoidLossConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them NaN, no class is better than the label: top1 would be 1.

    And the largest of NaNs is the first: the table would have the third image right.
    """
    broken = PROBABILITIES.copy()
    broken[1:] = value
    targets = np.eye(2, dtype=np.float32)[[0, 1, 0]]
    reported: list[EvaluatedSplit] = []
    metrics = evaluation(broken, targets, loss, reported.append)(step=1).metrics
    (seen,) = reported
    assert seen.table["recall"].tolist() == [0.5, 0.0]
    assert metrics["top1"] == pytest.approx(1 / 3)
    assert np.isfinite(metrics["negative_loss"])
    assert metrics["negative_loss"] < -20  # two thirds of -log(1e-15)
    (message,) = caplog.messages
    assert message.startswith("2 of 3 images of the split test have probabilities that are not")
