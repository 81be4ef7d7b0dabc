"""One training step on one replica: losses, gradients, clipping, update."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tpudet.trainkit.training.averaging import WeightAverage
from tpudet.trainkit.training.task import Task, Tensor

# What a step reports beside the task's losses.
L2 = "l2"
GRADIENT_NORM = "gradient_norm"


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
        records_of: Callable[[Any], tf.Tensor] | None,
    ) -> None:
        self.value_names: tuple[str, ...] = ()  # of a step but the last; set by tracing
        self._task = task
        self._optimizer: Any = optimizer
        self._trained = trained
        self._decayed = [variable.value for variable in decayed]
        self._l2_weight_decay = l2_weight_decay
        self._gradient_clip_norm = gradient_clip_norm
        self._scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self._average = average
        self._records_of = records_of

    def take(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Takes one step on this replica's part of the batch.

        Returns:
            This replica's share of the losses [losses]; gradient norm and learning rate [2], the
            same on every replica; the record numbers [b] int64. `value_names` names the values of
            the first two up to the learning rate.
        """
        with tf.GradientTape() as tape:
            losses = self._losses(batch)
            scaled = self._optimizer.scale_loss(losses["loss"])
        gradients = tape.gradient(scaled, [variable.value for variable in self._trained])
        gradients, norm = self._clipped(self._checked(gradients))
        learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
        step = tf.identity(self._optimizer.iterations.value)
        self._optimizer.apply(gradients, self._trained)
        if self._average:
            self._average.update(step)
        self.value_names = (*losses, GRADIENT_NORM)
        records = tf.cast(self._records_of(batch) if self._records_of else [], tf.int64)
        return tf.stack(list(losses.values())), tf.stack([norm, learning_rate]), records

    def _losses(self, batch: Any) -> dict[str, tf.Tensor]:
        """The task's losses and the L2 term, float32 scalars; "loss" is what is minimised."""
        losses = {
            name: tf.cast(value, tf.float32) for name, value in self._task.losses(batch).items()
        }
        wrong = {name: value.shape for name, value in losses.items() if value.shape.rank != 0}
        if wrong or "loss" not in losses:
            raise ValueError(
                f"the task's losses are {sorted(losses)}; there must be a 'loss', and each must be "
                f"a scalar, which these are not: {wrong or 'none'}"
            )
        if self._l2_weight_decay and self._decayed:
            share = self._l2_weight_decay / _context().num_replicas_in_sync
            losses[L2] = share * tf.add_n([tf.nn.l2_loss(value) for value in self._decayed])
            losses["loss"] += losses[L2]
        return losses

    def _checked(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        pairs = list(zip(self._trained, gradients, strict=True))
        missing = [variable.path for variable, gradient in pairs if gradient is None]
        if missing:
            raise ValueError(
                f"the loss does not depend on {', '.join(missing)}: freeze what is not used, or "
                "leave it out of the model"
            )
        return [gradient for gradient in gradients if gradient is not None]

    def _clipped(self, gradients: list[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Scales this replica's gradients so that their sum over replicas is clipped.

        Returns:
            The gradients, still multiplied by the loss scale, and the norm of their sum before
            clipping, without the loss scale.
        """
        summed = gradients
        if _context().num_replicas_in_sync > 1:
            summed = _context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        norm = tf.linalg.global_norm(summed)
        if self._scales_loss:
            norm /= self._optimizer.dynamic_scale.value
        factor = tf.ones([])
        if self._gradient_clip_norm is not None:
            factor = self._gradient_clip_norm / tf.maximum(norm, self._gradient_clip_norm)
        elif not self._scales_loss:
            return gradients, norm
        # Where the norm is not finite the factor is NaN. Keras asks only the first replica whether
        # its gradients overflowed; so all of them say so.
        factor += norm - norm
        return [gradient * factor for gradient in gradients], norm


def _context() -> tf.distribute.ReplicaContext:
    return tf.distribute.get_replica_context()
