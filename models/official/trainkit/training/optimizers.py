"""Keras optimizers on our schedules, the variables that decay, and the keys of the slots.

An optimizer belongs to the devices in whose scope it is created, as the model does.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import keras

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.training.freezing import frozen_paths
from tpudet.trainkit.training.schedules import Schedule
from tpudet.trainkit.types import Tensor

# Keras's names of the slots that these optimizers keep.
SLOTS = ("momentum", "velocity")


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


def momentum_sgd(schedule: Schedule, *, momentum: float, nesterov: bool) -> keras.optimizers.SGD:
    """Returns `velocity = momentum * velocity - rate * gradient; v += velocity`.

    Weight decay is an L2 term in the loss, which the engine adds. The rate is inside the velocity,
    so after a drop of the rate the old steps decay by `momentum` per step.
    """
    return keras.optimizers.SGD(_scheduled(schedule), momentum=momentum, nesterov=nesterov)


def adam(schedule: Schedule, *, beta_1: float, beta_2: float) -> keras.optimizers.Adam:
    """Returns Adam (arXiv 1412.6980); Keras's epsilon is the "epsilon hat" of its section 2."""
    return keras.optimizers.Adam(_scheduled(schedule), beta_1=beta_1, beta_2=beta_2)


class MovingMomentum(keras.optimizers.SGD):
    """`momentum_sgd` with another momentum each step.

    Args:
        schedule: the learning rate.
        momentum: of each step, 0 to 1.
        nesterov: as for `momentum_sgd`.
    """

    def __init__(self, schedule: Schedule, momentum: Schedule, *, nesterov: bool) -> None:
        super().__init__(_scheduled(schedule), momentum=0.5, nesterov=nesterov)  # any: it has slots
        self._momentum_of = momentum

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        velocity: Any = self.momentums[self._get_variable_index(variable)]
        momentum = ops.cast(self._momentum_of(self.iterations), variable.dtype)
        step = ops.cast(learning_rate, variable.dtype) * ops.cast(gradient, variable.dtype)
        self.assign(velocity, velocity * momentum - step)
        moved = velocity * momentum - step if self.nesterov else velocity
        self.assign_add(variable, moved)


class MovingBeta(keras.optimizers.Adam):
    """`adam` with another beta1 each step; its bias correction takes that of the step.

    Args:
        schedule: the learning rate.
        beta_1: of each step, 0 to 1.
        beta_2: as for `adam`.
    """

    def __init__(self, schedule: Schedule, beta_1: Schedule, *, beta_2: float) -> None:
        super().__init__(_scheduled(schedule), beta_2=beta_2)
        self._beta_of = beta_1

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        self.beta_1: Any = ops.cast(self._beta_of(self.iterations), variable.dtype)
        super().update_step(gradient, variable, learning_rate)


def adamw(
    schedule: Schedule,
    *,
    weight_decay: float,
    model: keras.Model,
    decayed: Sequence[keras.Variable],
    beta_1: float,
    beta_2: float,
) -> keras.optimizers.AdamW:
    """Returns Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2).

    Each step first subtracts `rate * weight_decay * v` from every decayed variable.

    Args:
        schedule: the learning rate.
        weight_decay: 0 or more, per step and per unit of the learning rate.
        model: its other variables do not decay.
        decayed: variables of the model that decay, see `decayed_variables`.
        beta_1: decay of the mean of the gradients.
        beta_2: decay of the mean of their squares.
    """
    optimizer = keras.optimizers.AdamW(
        _scheduled(schedule), weight_decay=weight_decay, beta_1=beta_1, beta_2=beta_2
    )
    chosen = {variable.path for variable in decayed}
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in model.variables if variable.path not in chosen]
    )
    return optimizer


def rmsprop(
    schedule: Schedule, *, rho: float, momentum: float, epsilon: float
) -> keras.optimizers.RMSprop:
    """Returns RMSProp with momentum; `epsilon` is under the root, as in TensorFlow 1.

    `square = rho * square + (1 - rho) * gradient ** 2`, from 0 (TensorFlow 1: from 1);
    `moved = momentum * moved + rate * gradient / sqrt(square + epsilon); v -= moved`. The rate is
    inside the momentum, and weight decay is an L2 term in the loss, as with `momentum_sgd`.
    """
    return keras.optimizers.RMSprop(
        _scheduled(schedule), rho=rho, momentum=momentum, epsilon=epsilon
    )


def lars(
    schedule: Schedule,
    *,
    weight_decay: float,
    decayed: Sequence[keras.Variable],
    momentum: float,
    trust_coefficient: float,
) -> "LARS":
    """Returns momentum with a learning rate per kernel, see `adapted_gradient`.

    Its weight decay is part of the gradient that determines the local rate, so the engine's L2 term
    must be 0.

    Args:
        schedule: the global learning rate; usually above 1, since each local rate is about
            `trust_coefficient` times the ratio of the norms.
        weight_decay: 0 or more.
        decayed: variables with a local rate and decay, see `decayed_variables`.
        momentum: 0 to 1.
        trust_coefficient: above 0.
    """
    return LARS(
        _scheduled(schedule),
        momentum=momentum,
        trust_coefficient=trust_coefficient,
        weight_decay=weight_decay,
        adapted_paths=[variable.path for variable in decayed],
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


class LARS(keras.optimizers.SGD):
    """Momentum with a local learning rate and weight decay per kernel (arXiv 1708.03888).

    Biases and the scales and shifts of normalisations take plain momentum steps without decay.

    Args:
        learning_rate: the global one, a Keras schedule.
        momentum: 0 to 1.
        trust_coefficient: as in `adapted_gradient`.
        weight_decay: as in `adapted_gradient`.
        adapted_paths: of the variables with a local rate and decay; those of rank 1 or less have
            neither all the same.
    """

    def __init__(
        self,
        learning_rate: Any,
        *,
        momentum: float,
        trust_coefficient: float,
        weight_decay: float,
        adapted_paths: Collection[str],
    ) -> None:
        super().__init__(learning_rate, momentum=momentum)
        self._trust_coefficient = trust_coefficient
        self._decay = weight_decay  # not Keras's own decay, which would act apart from the rate
        self._adapted_paths = frozenset(adapted_paths)

    def build(self, variables: Any) -> None:
        """Creates the momenta and finds the variables with a local rate."""
        super().build(variables)
        # By index: under a strategy the variables in `update_step` have no path.
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


def slot_variables(
    optimizer: keras.Optimizer, trained: Sequence[keras.Variable]
) -> dict[str, keras.Variable]:
    """Returns the state of a built optimizer by checkpoint key, without `iterations`.

    A slot's key is `<variable path>/<slot>`, a loss scale's is `loss_scale/<name>`. Keras names
    the slot of `stem/conv/kernel` "stem_conv_kernel_momentum". Two paths may give the same name
    (`a/b_c` and `a_b/c`); slots are created in the order of the variables, which distinguishes
    them.

    Raises:
        ValueError: the optimizer has state that belongs to no known variable or slot; it would be
            lost in a checkpoint.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        own = {
            f"loss_scale/{variable.name}": variable
            for variable in (optimizer.dynamic_scale, optimizer.step_counter)
        }
        return own | slot_variables(optimizer.inner_optimizer, trained)
    waiting = _paths_by_slot_name(variable.path for variable in trained)
    slots = {}
    unknown = []
    for variable in optimizer.variables:
        if variable is optimizer.iterations:
            continue
        candidates = waiting.get(variable.name)
        if candidates:
            slots[f"{candidates.pop(0)}/{variable.name.rsplit('_', 1)[-1]}"] = variable
        else:
            unknown.append(variable.name)
    if unknown:
        raise ValueError(
            f"{type(optimizer).__name__} keeps {', '.join(unknown)}, which belong to no known slot "
            f"of a variable; the slots are {', '.join(SLOTS)}. Create the optimizer with the "
            "functions of tpudet.trainkit.training.optimizers"
        )
    return slots


def _paths_by_slot_name(paths: Iterable[str]) -> dict[str, list[str]]:
    waiting = defaultdict(list)
    for path in paths:
        for slot in SLOTS:
            waiting[f"{path.replace('/', '_')}_{slot}"].append(path)
    return waiting
