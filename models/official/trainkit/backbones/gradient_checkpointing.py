"""Gradient checkpointing (Chen et al., arXiv 1604.06174): less memory for more time.

Activations between a layer's inputs and outputs are recomputed in the backward pass, not stored.
"""

from collections.abc import Sequence

import keras

from tpudet.trainkit.types import Tensor


def call_checkpointed(layer: keras.Layer, *inputs: Tensor) -> Tensor:
    """Returns `layer(*inputs, training=True)`, storing only inputs and outputs.

    The layer runs again in the backward pass. It gets its variables as tensors and returns the new
    values of those it updates, so that statistics, seeds and counters advance once, and the second
    run draws the same random numbers. A layer without trainable variables is called directly: in
    most cases no gradient passes through it, and nothing is stored.

    Args:
        layer: built; returns one tensor.
        *inputs: floating-point tensors.
    """
    if not layer.trainable_variables:
        return layer(*inputs, training=True)
    floats = [v for v in layer.variables if keras.backend.is_float_dtype(v.dtype)]
    # Integers have no gradient, and TensorFlow warns about each one it is given.
    others = [v for v in layer.variables if not keras.backend.is_float_dtype(v.dtype)]
    # Tensors: TensorFlow would read a variable again in the backward pass, after its update.
    values, other_values = ([v * 1 for v in group] for group in (floats, others))
    updated: list[keras.Variable] = []  # known after the first run

    def run(values: Sequence[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        state = [*zip(floats, values, strict=True), *zip(others, other_values, strict=True)]
        with keras.StatelessScope(state_mapping=state) as scope:
            before = [(variable, scope.get_current_value(variable)) for variable, _ in state]
            outputs = layer(*inputs, training=True)
        after = [(v, scope.get_current_value(v), value) for v, value in before]
        updated[:] = [variable for variable, new, old in after if new is not old]
        return outputs, *(new for _, new, old in after if new is not old)

    outputs, *new_values = keras.remat(run)(values, *inputs)
    for variable, value in zip(updated, new_values, strict=True):
        variable.assign(value)
    return outputs
