"""Computations that stay right where a network is in low precision.

A sum of ones in bfloat16 stops at 256, and numbers near 1 have steps of 1/256 there.
"""

from typing import Any

import keras

from tpudet.trainkit.cpu import multiplies_bfloat16
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_PRECISE = ("float32", "float64")  # in which sums are taken as they are


def runs_on_cpu() -> bool:
    """Whether the first device of the machine that traces is a CPU; an exported graph keeps that.

    To train on the CPU of a machine with a GPU, hide the GPU (CUDA_VISIBLE_DEVICES=).
    """
    return keras.distribution.list_devices()[0].startswith("cpu")


def convolution_dtype(inputs: Tensor, *, depthwise: bool) -> Any:
    """Returns the precision to convolve in: that of the inputs, or float32 where it is poor.

    On CPUs only oneDNN's full convolutions in bfloat16 sum in float32, and only with the CPU's own
    instructions are they faster. The others lose small terms, and so do those of XLA: gradients of
    depthwise kernels were 61 % off (`benchmarks/gradient_precision.py`).
    """
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    if dtype in _PRECISE or not runs_on_cpu():
        return dtype
    is_fast = keras.backend.backend() == "tensorflow" and multiplies_bfloat16()
    return dtype if dtype == "bfloat16" and is_fast and not depthwise else "float32"


def add_bias(inputs: Tensor, bias: Tensor) -> Tensor:
    """Returns `inputs` [..., channels] plus `bias` [channels], in the precision of the inputs.

    The gradient of the bias is summed in float32: TensorFlow's own sum in bfloat16 on a CPU was
    90 % off.
    """

    def add(inputs: Tensor, bias: Tensor):
        def gradient(*args: Tensor, upstream: Tensor = None):
            upstream = args[0] if upstream is None else upstream
            return upstream, _channel_sums(ops.cast(upstream, "float32"))

        return inputs + ops.cast(bias, inputs.dtype), gradient

    if keras.backend.standardize_dtype(inputs.dtype) in _PRECISE:
        return inputs + ops.cast(bias, inputs.dtype)
    # A tensor: TensorFlow's custom gradients refuse variables.
    return ops.custom_gradient(add)(inputs, ops.convert_to_tensor(bias) * 1.0)


def weigh(features: Tensor, weights: Tensor) -> Tensor:
    """Returns features [B, H, W, C] times weights [B, 1, 1, C] or [], in the features' precision.

    The gradient of the weights is summed in float32: XLA's own sum in bfloat16 on a CPU was a
    quarter of it, 25,600 for 102,400 pixels. Weights in float32 get it as it is.
    """

    def multiply(features: Tensor, weights: Tensor):
        def gradient(*args: Tensor, upstream: Tensor = None):
            upstream = args[0] if upstream is None else upstream
            products = ops.cast(upstream, "float32") * ops.cast(features, "float32")
            if len(weights.shape) > 0:
                total = ops.sum(ops.sum(products, axis=2, keepdims=True), axis=1, keepdims=True)
            else:
                total = ops.sum(_channel_sums(products))
            return upstream * ops.cast(weights, upstream.dtype), ops.cast(total, weights.dtype)

        return features * ops.cast(weights, features.dtype), gradient

    if keras.backend.standardize_dtype(features.dtype) in _PRECISE:
        return features * weights
    return ops.custom_gradient(multiply)(features, weights)


def _channel_sums(values: Tensor) -> Tensor:
    # [..., C] -> [C]; TensorFlow's sum over all axes at once of a million equal numbers is 1 % off
    # on a CPU.
    if len(values.shape) > 2:
        values = ops.sum(values, axis=-2)
    return ops.sum(values, axis=tuple(range(len(values.shape) - 1)))


def in_full_precision(values: Tensor) -> Tensor:
    """Returns values of low precision in float32.

    For gates: near 1 a sigmoid in bfloat16 has steps of 1/256, and its slope, which is computed
    from it, is 0 from a logit of 6 on.
    """
    is_precise = keras.backend.standardize_dtype(values.dtype) in _PRECISE
    return values if is_precise else ops.cast(values, "float32")
