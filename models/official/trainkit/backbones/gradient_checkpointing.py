"""Gradient checkpointing (Chen et al., arXiv 1604.06174): memory for time.

What is between a layer's inputs and outputs is not kept for the backward pass but computed again.
"""

from collections.abc import Sequence

import keras

from tpudet.trainkit.backbones.batch_norm import Tensor


def call_checkpointed(layer: keras.Layer, *inputs: Tensor) -> Tensor:
    """Returns `layer(*inputs, training=True)`, of which only inputs and outputs are kept.

    The layer runs a second time in the backward pass. Its variables are handed to it as tensors and
    new values of those that it moves are handed back, so that statistics, seeds and counters move
    on once, and the second time draws the same random numbers. A layer without anything to train is
    called plainly: mostly no gradient passes through it, and nothing is kept.

    Args:
        layer: Built; returns one tensor.
        *inputs: Floating-point tensors.
    """
    if not layer.trainable_variables:
        return layer(*inputs, training=True)
    floats = [v for v in layer.variables if keras.backend.is_float_dtype(v.dtype)]
    # Whole numbers have no gradient, and TensorFlow warns of each that it is handed.
    others = [v for v in layer.variables if not keras.backend.is_float_dtype(v.dtype)]
    # A tensor each: TensorFlow would read a variable anew in the backward pass, when it has moved.
    values, other_values = ([v * 1 for v in group] for group in (floats, others))
    moving: list[keras.Variable] = []  # known once it has run

    def run(values: Sequence[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        state = [*zip(floats, values, strict=True), *zip(others, other_values, strict=True)]
        with keras.StatelessScope(state_mapping=state) as scope:
            before = [(variable, scope.get_current_value(variable)) for variable, _ in state]
            outputs = layer(*inputs, training=True)
        after = [(v, scope.get_current_value(v), value) for v, value in before]
        moving[:] = [variable for variable, new, old in after if new is not old]
        return outputs, *(new for _, new, old in after if new is not old)

    outputs, *moved = keras.remat(run)(values, *inputs)
    for variable, value in zip(moving, moved, strict=True):
        variable.assign(value)
    return outputs
