"""Counts a model's parameters and its multiply-adds per image."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from tpudet.detection.types import Batch, Detections
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


def count_flops(forward: Callable[[Tensor], Any], canvas: tuple[int, int]) -> int:
    """Returns the multiply-adds of a model for one image.

    Convolutions, fully connected layers and products of matrices count, one multiply-add per
    product with a weight, padding included; normalisation, activations, pooling and resizing do
    not, as in the tables of papers. Nothing is computed: the count is taken while Keras infers the
    shapes of a call, so a shared layer counts as often as it is called. Convolutions must go
    through `keras.ops`, as all of `tpudet.trainkit.backbones.layers` do; of `keras.layers` only
    `Dense` and `Conv2DTranspose` are seen.

    Args:
        forward: takes images [1, H, W, 3] uint8: a model, or `predict_images` of a detector.
        canvas: height and width of the image in pixels.
    """
    with _counted_products() as counts:
        _Forward(forward).compute_output_spec(keras.KerasTensor((1, *canvas, 3), dtype="uint8"))
    return sum(counts)


def predict_images(predict: Callable[[Batch], Detections], images: Tensor) -> Detections:
    """Returns the detections of images [B, H, W, 3] uint8 that fill their canvas."""
    batch, height, width, _ = images.shape
    pairs = np.ones((batch, 2), np.float32)
    return predict(
        Batch(
            images=images,
            boxes=np.zeros((batch, 1, 4), np.float32),
            classes=np.zeros((batch, 1), np.int32),
            is_crowd=np.zeros((batch, 1), bool),
            records=np.arange(batch),
            original_sizes=pairs * np.array([height, width], np.float32),
            scales=pairs,
            offsets=pairs * 0,
        )
    )


class _Forward(keras.layers.Layer):
    """A function as a layer, so that Keras infers shapes through it."""

    def __init__(self, forward: Callable[[Tensor], Any]):
        super().__init__()
        self.forward = forward

    def call(self, images: Tensor) -> Any:
        return self.forward(images)


@contextlib.contextmanager
def _counted_products() -> Iterator[list[int]]:
    # Layers look up these at each call, so a replacement sees all of them.
    counts: list[int] = []
    layers: Any = keras.layers
    places = [(ops, name) for name in _PRODUCTS_PER_OUTPUT if hasattr(ops, name)]
    places += [(layers.Dense, "call")]
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]

    def counted(original: Any, products: Callable[..., int]) -> Any:
        def call(first: Any, second: Any, *args: Any, **settings: Any) -> Tensor:
            outputs = original(first, second, *args, **settings)
            counts.append(math.prod(outputs.shape) * products(first, second))
            return outputs

        return call

    try:
        for owner, name, original in originals:
            key = name if owner is ops else owner.__name__
            setattr(owner, name, counted(original, _PRODUCTS_PER_OUTPUT[key]))
        yield counts
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


# Products per number of the output, from the first two arguments. Kernels are [h, w, channels /
# groups, filters] of a convolution, [h, w, C, 1] of a depthwise one, [h, w, filters, channels] of a
# transposed one, whose strides are its sides: each place belongs to one pixel of the input.
_PRODUCTS_PER_OUTPUT: Mapping[str, Callable[..., int]] = {
    "conv": lambda inputs, kernel: math.prod(kernel.shape[:-1]),
    "depthwise_conv": lambda inputs, kernel: math.prod(kernel.shape[:2]),
    "conv_transpose": lambda inputs, kernel: kernel.shape[-1],
    "matmul": lambda first, second: first.shape[-1],
    "Dense": lambda layer, inputs: inputs.shape[-1],
}
