"""Keras optimizers on our schedules, and the variables that decay.

An optimizer belongs to the devices in whose scope it is created, as the model does.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.training.freezing import frozen_paths
from tpudet.trainkit.training.schedules import Schedule
from tpudet.trainkit.types import Tensor


class ScheduledLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """A `Schedule` as Keras expects it; the step is the optimizer's `iterations`."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def __call__(self, step: Any) -> Any:
        """Returns the float32 learning rate of that step."""
        return self._schedule(step)


def _scheduled(schedule: Schedule) -> Any:
    # Any, since Keras annotates its learning rates as float.
    return ScheduledLearningRate(schedule)


def _on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


class Momentum(keras.optimizers.SGD):
    """`velocity = momentum * velocity - rate * gradient; v += velocity`.

    Weight decay is an L2 term in the loss, which the engine adds. The rate is inside the velocity,
    so after a drop of the rate the old steps decay by `momentum` per step.

    Args:
        schedule: the learning rate.
        momentum: 0 to 1, or that of each step.
        nesterov: whether v moves by the velocity that the next step would begin with.
    """

    def __init__(
        self, schedule: Schedule, *, momentum: float | Schedule, nesterov: bool = False
    ) -> None:
        moves = callable(momentum)
        constant = 0.5 if moves else momentum  # of one that moves, any: it has slots
        super().__init__(_scheduled(schedule), momentum=constant, nesterov=nesterov)
        self._momentum_of = momentum if moves else None

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Takes a step."""
        if self._momentum_of:
            self.momentum: Any = ops.cast(self._momentum_of(self.iterations), "float32")
        return super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        if not self.momentums:  # the momentum is 0
            super().update_step(gradient, variable, learning_rate)
            return
        velocity: Any = self.momentums[self._get_variable_index(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        if _on_tensorflow():
            from tpudet.trainkit.training.fused_updates import update_momentum

            update_momentum(
                variable,
                velocity.value,
                gradient,
                rate=learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
            )
            return
        self.assign(velocity, velocity * self.momentum - learning_rate * gradient)
        moved = velocity * self.momentum - learning_rate * gradient if self.nesterov else velocity
        self.assign_add(variable, moved)


class Adam(keras.optimizers.Adam):
    """Adam (arXiv 1412.6980), with the decoupled weight decay of arXiv 1711.05101, algorithm 2.

    Each step first subtracts `rate * weight_decay * v` from every decayed variable. Keras's epsilon
    is the "epsilon hat" of section 2 of the former paper.

    Args:
        schedule: the learning rate.
        beta_1: decay of the mean of the gradients, or that of each step, which the bias correction
            then takes.
        beta_2: decay of the mean of their squares.
        weight_decay: 0 or more, per step and per unit of the learning rate.
        decayed: variables that decay, see `decayed_variables`.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        beta_1: float | Schedule,
        beta_2: float,
        weight_decay: float = 0.0,
        decayed: Sequence[keras.Variable] = (),
    ) -> None:
        moves = callable(beta_1)
        super().__init__(_scheduled(schedule), beta_1=0.9 if moves else beta_1, beta_2=beta_2)
        self._beta_of = beta_1 if moves else None
        self._decay = weight_decay  # not Keras's own, which asks the schedule for each variable
        self._decayed_paths = frozenset(variable.path for variable in decayed)

    def build(self, var_list: Any) -> None:
        """Creates the slots and finds the variables that decay."""
        super().build(var_list)
        # By index: under a strategy the variables in `update_step` have no path.
        self._decays = [variable.path in self._decayed_paths for variable in var_list]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Takes a step."""
        # Here what `update_step` would trace once for each variable.
        if self._beta_of:
            self.beta_1: Any = ops.cast(self._beta_of(self.iterations), "float32")
        if _on_tensorflow():
            iterations: Any = self.iterations
            step = ops.cast(iterations + 1, "float32")
            betas = [ops.convert_to_tensor(beta, "float32") for beta in (self.beta_1, self.beta_2)]
            self._scalars = {
                "beta_1": betas[0],
                "beta_2": betas[1],
                "beta_powers": [ops.power(beta, step) for beta in betas],
                "epsilon": ops.convert_to_tensor(self.epsilon, "float32"),
            }
        if self._decay:
            self._lost = self._decay * ops.cast(self.learning_rate, "float32")
        return super().apply(grads, trainable_variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        index = self._get_variable_index(variable)
        if self._decay and self._decays[index]:
            self.assign_sub(variable, variable * self._lost)
        if not _on_tensorflow():
            super().update_step(gradient, variable, learning_rate)
            return
        from tpudet.trainkit.training.fused_updates import update_adam

        update_adam(
            variable,
            self._momentums[index].value,
            self._velocities[index].value,
            ops.cast(gradient, variable.dtype),
            rate=learning_rate,
            **self._scalars,
        )


class RMSprop(keras.optimizers.RMSprop):
    """RMSProp with momentum; `epsilon` is under the root, as in TensorFlow 1.

    `square = rho * square + (1 - rho) * gradient ** 2`, from 0 (TensorFlow 1: from 1);
    `moved = momentum * moved + rate * gradient / sqrt(square + epsilon); v -= moved`. The rate is
    inside the momentum, and weight decay is an L2 term in the loss, as with `Momentum`.

    Args:
        schedule: the learning rate.
        rho: 0 to 1.
        momentum: 0 to 1.
        epsilon: above 0.
    """

    def __init__(self, schedule: Schedule, *, rho: float, momentum: float, epsilon: float) -> None:
        super().__init__(_scheduled(schedule), rho=rho, momentum=momentum, epsilon=epsilon)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        if not (_on_tensorflow() and self._momentums):
            super().update_step(gradient, variable, learning_rate)
            return
        from tpudet.trainkit.training.fused_updates import update_rmsprop

        index = self._get_variable_index(variable)
        update_rmsprop(
            variable,
            self._velocities[index].value,
            self._momentums[index].value,
            ops.cast(gradient, variable.dtype),
            rate=learning_rate,
            rho=self.rho,
            momentum=self.momentum,
            epsilon=self.epsilon,
        )


def adapted_gradient(
    gradient: Tensor, weight: Tensor, *, trust_coefficient: float, weight_decay: float
) -> Tensor:
    """Returns the decayed gradient times the weight's local rate (arXiv 1708.03888, algorithm 1).

    `trust * |w| / (|g| + decay * |w|) * (g + decay * w)`: a step then moves a weight by at most
    `trust` of its norm for a learning rate of 1, however large its gradient. The local rate is 1 if
    the weight or the gradient is all zeros.

    Args:
        gradient: of the loss, without weight decay.
        weight: of the same shape.
        trust_coefficient: the paper's eta, above 0.
        weight_decay: the paper's beta, 0 or more.
    """
    weight = ops.convert_to_tensor(weight)
    weight_norm = ops.sqrt(ops.sum(ops.square(weight)))
    gradient_norm = ops.sqrt(ops.sum(ops.square(gradient)))
    is_measurable = ops.logical_and(weight_norm > 0, gradient_norm > 0)
    divisor = ops.where(is_measurable, gradient_norm + weight_decay * weight_norm, 1.0)
    rate = ops.where(is_measurable, trust_coefficient * weight_norm / divisor, 1.0)
    return rate * (gradient + weight_decay * weight)


class LARS(Momentum):
    """Momentum with a local learning rate per kernel, see `adapted_gradient` (arXiv 1708.03888).

    Its weight decay is part of the gradient that determines the local rate, so the engine's L2 term
    must be 0. Biases and the scales and shifts of normalisations take plain momentum steps without
    decay.

    Args:
        schedule: the global learning rate; usually above 1, since each local rate is about
            `trust_coefficient` times the ratio of the norms.
        weight_decay: 0 or more.
        decayed: variables with a local rate and decay, see `decayed_variables`; those of rank 1 or
            less have neither all the same.
        momentum: 0 to 1.
        trust_coefficient: above 0.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        weight_decay: float,
        decayed: Sequence[keras.Variable],
        momentum: float,
        trust_coefficient: float,
    ) -> None:
        super().__init__(schedule, momentum=momentum)
        self._trust_coefficient = trust_coefficient
        self._decay = weight_decay  # not Keras's own decay, which would act apart from the rate
        self._adapted_paths = frozenset(variable.path for variable in decayed)

    def build(self, variables: Any) -> None:
        """Creates the momenta and finds the variables with a local rate."""
        super().build(variables)
        # By index, as in `Adam`.
        self._is_adapted = [
            variable.path in self._adapted_paths and len(variable.shape) > 1
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        if self._is_adapted[self._get_variable_index(variable)]:
            gradient = adapted_gradient(
                ops.cast(gradient, variable.dtype),
                variable,
                trust_coefficient=self._trust_coefficient,
                weight_decay=self._decay,
            )
        super().update_step(gradient, variable, learning_rate)


def with_loss_scaling(optimizer: keras.Optimizer) -> keras.optimizers.LossScaleOptimizer:
    """Returns the optimizer with dynamic loss scaling, which float16 gradients need.

    If a gradient overflows, the scale is halved and the step is skipped: weights and step number
    stay, the batch is spent.
    """
    return keras.optimizers.LossScaleOptimizer(optimizer)


def decayed_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables that weight decay acts on: kernels that are not frozen, in model order.

    Never a bias or a variable of a BatchNorm.
    """
    frozen = frozen_paths(model)
    return [
        variable
        for variable in model.trainable_variables
        if is_decayed(variable.path) and variable.path not in frozen
    ]


def is_decayed(path: str) -> bool:
    """Returns whether the variable of that path is a kernel: its name ends in `kernel`."""
    return path.rsplit("/", 1)[-1].endswith("kernel")
