"""Counts a model's parameters and its multiply-adds per image."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import keras

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def count_parameters(model: keras.Model) -> int:
    """Returns the number of trainable parameters, frozen ones included.

    Statistics of batch normalisation, states of random generators and counters do not count, as in
    the tables of papers.
    """
    return sum(
        math.prod(variable.shape)
        for variable in model.weights
        if variable.dtype.startswith(("float", "bfloat"))
        and not variable.path.rpartition("/")[2].startswith("moving_")
    )


def count_flops(model: keras.Model, canvas: tuple[int, int]) -> int:
    """Returns the multiply-adds of the model for one image.

    Only convolutions count, one multiply-add per product with a kernel weight, padding included;
    normalisation, activations, pooling and resizing do not, as in the tables of papers. Nothing is
    computed: the count is taken while Keras infers the shapes of a call, so a shared layer counts
    as often as it is called. Convolutions must go through `keras.ops`, as all of
    `tpudet.trainkit.backbones.layers` do; those of `keras.layers` are not seen.

    Args:
        model: Takes images [1, H, W, 3] uint8.
        canvas: Height and width of the image in pixels.
    """
    with _counted_convolutions() as counts:
        model.compute_output_spec(keras.KerasTensor((1, *canvas, 3), dtype="uint8"))
    return sum(counts)


@contextlib.contextmanager
def _counted_convolutions() -> Iterator[list[int]]:
    # Layers look up keras.ops.conv at each call, so a replacement sees all of them.
    counts: list[int] = []
    originals = {name: getattr(ops, name) for name in ("conv", "depthwise_conv")}

    def counted(name: str) -> Any:
        def call(inputs: Tensor, kernel: Tensor, *args: Any, **settings: Any) -> Tensor:
            outputs = originals[name](inputs, kernel, *args, **settings)
            # Products per output: kernels are [h, w, channels / groups, filters] or [h, w, C, 1].
            products = kernel.shape[:-1] if name == "conv" else kernel.shape[:2]
            counts.append(math.prod((*outputs.shape, *products)))
            return outputs

        return call

    try:
        for name in originals:
            setattr(ops, name, counted(name))
        yield counts
    finally:
        for name, original in originals.items():
            setattr(ops, name, original)
