"""One step outside of any loop: clipping by hand, and losses that do not fit."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.optimizers import Momentum
from tpudet.trainkit.training.schedules import stepwise
from tpudet.trainkit.training.tensorflow_step import ReplicaStep


class Given:
    """A task whose losses are a function of its model's weights."""

    def __init__(self, losses_of: Callable[[list[tf.Tensor]], dict[str, Any]]) -> None:
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(2, name="dense", kernel_initializer="ones")(inputs)
        self.model = keras.Model(inputs, outputs)
        self._losses_of = losses_of

    def losses(self, batch: Any) -> dict[str, Any]:
        return self._losses_of([variable.value for variable in self.model.weights])

    def predict(self, batch: Any) -> Any:
        return batch


def step_of(task: Given, clip: float | None = None) -> ReplicaStep:
    optimizer = Momentum(
        stepwise(peak=0.5, drop_rates=[], drop_steps=[]), momentum=0.9, nesterov=False
    )
    optimizer.build(task.model.trainable_variables)
    return ReplicaStep(
        task=task,
        optimizer=optimizer,
        trained=task.model.trainable_variables,
        decayed=[],
        l2_weight_decay=0.0,
        gradient_clip_norm=clip,
        average=None,
        record_numbers=lambda batch: batch,
    )


@pytest.mark.parametrize(("clip", "factor"), [(None, 1.0), (6.5, 0.5), (13.0, 1.0), (20.0, 1.0)])
def test_gradients_are_clipped_by_the_norm_of_all_of_them(
    clip: float | None, factor: float
) -> None:
    """Gradients 3, 4 of the kernel and 0, 12 of the bias: their norm is 13."""

    def losses_of(weights: list[tf.Tensor]) -> dict[str, Any]:
        kernel, bias = weights
        return {"loss": tf.reduce_sum(kernel * [[3.0, 4.0]]) + 12.0 * bias[1]}

    task = Given(losses_of)
    step = step_of(task, clip)
    shares, common, records = step.take(tf.constant([8, 9], tf.int32))
    assert step.value_names == ("loss", "gradient_norm")
    np.testing.assert_allclose(shares, [7.0])
    np.testing.assert_allclose(common, [13.0, 0.5])
    np.testing.assert_array_equal(records, np.array([8, 9], np.int64))
    kernel, bias = task.model.get_weights()
    np.testing.assert_allclose(kernel, [[1 - 1.5 * factor, 1 - 2.0 * factor]], rtol=1e-6)
    np.testing.assert_allclose(bias, [0.0, -6.0 * factor], rtol=1e-6)


def test_a_variable_that_the_loss_does_not_need_is_named() -> None:
    task = Given(lambda weights: {"loss": tf.reduce_sum(weights[0])})
    with pytest.raises(ValueError, match="the loss does not depend on dense/bias: freeze"):
        step_of(task).take(tf.constant([0]))


def test_losses_must_be_scalars_with_their_sum() -> None:
    task = Given(lambda weights: {"loss_box": weights[1]})
    with pytest.raises(ValueError, match="there must be a 'loss'") as error:
        step_of(task).take(tf.constant([0]))
    assert "the task's losses are ['loss_box']" in str(error.value)
    assert "{'loss_box': (2,)}" in str(error.value)
