"""Layer-wise adaptive rate scaling (You et al., arXiv 1708.03888), for large batches."""

from collections.abc import Collection
from typing import Any

import keras

ops: Any = keras.ops  # annotated with None among its results


def adapted_gradient(
    gradient: Any, weight: Any, *, trust_coefficient: float, weight_decay: float
) -> Any:
    """Returns the decayed gradient times the local rate of the weight (the paper's algorithm 1).

    `trust * |w| / (|g| + decay * |w|) * (g + decay * w)`: a step then moves a weight by at most
    `trust` of its norm for a learning rate of 1, however large its gradient. A weight or a
    gradient that is all zeros has no direction to measure by, and a local rate of 1.

    Args:
        gradient: of the loss, the decay left out.
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
    """Momentum with a local learning rate, and weight decay, for each weight of rank above 1.

    Biases and the scales and shifts of normalisations take plain momentum steps without decay.
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
        """Takes the global learning rate and what `adapted_gradient` takes.

        Args:
            learning_rate: the global one, a Keras schedule.
            momentum: 0 to 1.
            trust_coefficient: as in `adapted_gradient`.
            weight_decay: as in `adapted_gradient`.
            adapted_paths: of the variables that have a local rate and decay, those of rank above 1.
        """
        super().__init__(learning_rate, momentum=momentum)
        self._trust_coefficient = trust_coefficient
        self._decay = weight_decay  # not Keras's own decay, which would act apart from the rate
        self._adapted_paths = frozenset(adapted_paths)

    def build(self, variables: Any) -> None:
        """Makes the momenta, and notes whose rate is adapted."""
        super().build(variables)
        # By index: a strategy hands `update_step` variables that no longer know their path.
        self._is_adapted = [
            variable.path in self._adapted_paths and len(variable.shape) > 1
            for variable in variables
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Takes one step of one variable."""
        if self._is_adapted[self._get_variable_index(variable)]:
            gradient = adapted_gradient(
                ops.cast(gradient, variable.dtype),
                variable,
                trust_coefficient=self._trust_coefficient,
                weight_decay=self._decay,
            )
        super().update_step(gradient, variable, learning_rate)
