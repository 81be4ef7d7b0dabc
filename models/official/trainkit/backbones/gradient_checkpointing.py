"""Gradient checkpointing (Chen et al., arXiv 1604.06174): memory for time.

What is between a layer's inputs and outputs is not kept for the backward pass but computed again.
"""

from collections.abc import Sequence
from typing import Any

import keras

from trainkit.backbones.batch_norm import Tensor

ops: Any = keras.ops  # annotated with None among its results


def call_checkpointed(layer: keras.Layer, *inputs: Tensor) -> Tensor:
    """Returns `layer(*inputs, training=True)`, of which only inputs and outputs are kept.

    The layer runs a second time in the backward pass. Its variables are handed to it as tensors and
    their new values handed back, so that moving statistics, seeds and counters move on once, and
    the second time draws the same random numbers.

    Args:
        layer: Built; returns one tensor.
        *inputs: Tensors.
    """
    variables = list(layer.variables)
    moving = layer.non_trainable_variables

    def run(values: Sequence[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))) as scope:
            outputs = layer(*inputs, training=True)
        return outputs, *(scope.get_current_value(variable) for variable in moving)

    # All of them are arguments, seeds too: of a tensor from outside TensorFlow's graph optimizer
    # forgets that it is to be read before the variable is assigned to.
    outputs, *moved = keras.remat(run)([ops.convert_to_tensor(v) for v in variables], *inputs)
    for variable, value in zip(moving, moved, strict=True):
        variable.assign(value)
    return outputs
