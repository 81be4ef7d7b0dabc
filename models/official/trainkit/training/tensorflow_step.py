"""One training step of one replica on TensorFlow, and the state that the loop of steps carries."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tpudet.trainkit.training import step
from tpudet.trainkit.training.averaging import WeightAverage
from tpudet.trainkit.training.engine import GRADIENT_NORM
from tpudet.trainkit.training.task import Task
from tpudet.trainkit.types import Tensor


class LoopState(NamedTuple):
    """The state that the loop of steps carries from one to the next."""

    steps: Tensor  # [] int64, steps that counted
    totals: Tensor  # [values] float32, sums over those steps; [] before the first step
    values: Tensor  # [values] float32, of the last step: losses, gradient norm, learning rate
    records: Tensor  # [B] int64, of the last step; [0] before it
    waited: Tensor  # [] float64, seconds
    failed: Tensor  # [] bool


def initial_state() -> LoopState:
    """Returns the state before the first step."""
    return LoopState(
        steps=tf.zeros([], tf.int64),
        totals=tf.zeros([]),
        values=tf.zeros([]),
        records=tf.zeros([0], tf.int64),
        waited=tf.zeros([], tf.float64),
        failed=tf.constant(False),
    )


def state_shapes() -> LoopState:
    """Returns the shapes that hold for all steps."""
    scalar = tf.TensorShape([])
    # The number of values per step is known only once the step is traced, inside the loop.
    anything = tf.TensorShape(None)  # pyright: ignore[reportArgumentType]
    return LoopState(
        steps=scalar,
        totals=anything,
        values=anything,
        records=tf.TensorShape([None]),
        waited=scalar,
        failed=scalar,
    )


class ReplicaStep:
    """Takes steps in a replica's context; the arguments are those of the engine."""

    def __init__(
        self,
        *,
        task: Task,
        optimizer: keras.Optimizer,
        trained: Sequence[keras.Variable],
        decayed: Sequence[keras.Variable],
        l2_weight_decay: float,
        gradient_clip_norm: float | None,
        average: WeightAverage | None,
        record_numbers: Callable[[Any], tf.Tensor] | None,
    ) -> None:
        self.value_names: tuple[str, ...] = ()  # losses and gradient norm; set by tracing
        self._task = task
        self._optimizer: Any = optimizer
        self._trained = trained
        self._decayed = [variable.value for variable in decayed]
        self._l2_weight_decay = l2_weight_decay
        self._gradient_clip_norm = gradient_clip_norm
        self._scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._average = average
        self._record_numbers = record_numbers

    def take(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes one step on this replica's part of the batch.

        Returns:
            This replica's share of the losses [L]; gradient norm and learning rate [2], the same on
            every replica; the record numbers [b] int64. `value_names` names the values of the first
            two up to the learning rate.
        """
        with tf.GradientTape() as tape:
            # TensorFlow's L2Loss is one op with a gradient of one product: a quarter of the time.
            losses = step.add_l2(
                step.check_losses(self._task.losses(batch)),
                self._decayed,
                weight_decay=self._l2_weight_decay,
                num_replicas=_context().num_replicas_in_sync,
                half_squared_norm=tf.nn.l2_loss,
            )
            scaled = self._optimizer.scale_loss(losses["loss"])
        gradients = tape.gradient(scaled, [variable.value for variable in self._trained])
        gradients = step.check_gradients([variable.path for variable in self._trained], gradients)
        gradients, norm = self._clip(gradients)
        learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        number = tf.identity(self._optimizer.iterations.value)
        self._optimizer.apply(gradients, self._trained)
        if self._average:
            step_applied = self._optimizer.iterations.value > number if self._scales_loss else True
            self._average.update(number, step_applied=step_applied)
        self.value_names = (*losses, GRADIENT_NORM)
        records = tf.cast(self._record_numbers(batch) if self._record_numbers else [], tf.int64)
        return tf.stack(list(losses.values())), tf.stack([norm, learning_rate]), records

    def _clip(self, gradients: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Scales this replica's gradients so that their sum over replicas is clipped.

        Returns:
            The gradients, still multiplied by the loss scale, and the norm of their sum before
            clipping, without the loss scale.
        """
        summed = gradients
        if _context().num_replicas_in_sync > 1:
            summed = _context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = step.global_norm(summed, half_squared_norm=tf.nn.l2_loss)
        if self._scales_loss:
            norm /= self._optimizer.dynamic_scale.value
        elif self._gradient_clip_norm is None:
            return gradients, norm
        factor = step.clip_factor(norm, self._gradient_clip_norm)
        return [gradient * factor for gradient in gradients], norm


def _context() -> tf.distribute.ReplicaContext:
    return tf.distribute.get_replica_context()
