"""Gradients that are sums over many ones, in bfloat16 on the backend of KERAS_BACKEND.

`test_low_precision_sums.py` runs them, and this file in a process of its own for JAX; what came out
goes to standard output as JSON.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tpudet.detection.modeling.nas_fpn import attend
from tpudet.detection.modeling.roi_heads import Upsample
from tpudet.detection.ops.roi_align import roi_align
from tpudet.trainkit.backbones.layers import Conv, squeeze_and_excite
from tpudet.trainkit.backbones.low_precision import add_bias, weigh
from tpudet.trainkit.keras_ops import ops

MAP = np.ones((1, 160, 160, 2))  # 25,600 pixels


def gate() -> float:
    """Of each channel: 25,600."""
    features = _half(MAP)
    return _gradient(lambda gates: weigh(features, gates), np.ones((1, 1, 1, 2))).max()


def share() -> float:
    """Over both channels: 51,200."""
    features = _half(MAP)
    return _gradient(lambda one: weigh(features, one), np.ones(()), "float32").max()


def attention() -> float:
    """1 for each coarse pixel, and at the largest a quarter of 25,600 for the gate: 6,401."""
    features = _half(MAP)
    return _gradient(lambda coarse: attend(features, coarse), 0 * MAP).max()


def open_gate() -> float:
    """25,600 times the slope of a sigmoid at 6, 0.002467: the gate is 0.9975."""
    squeeze, excite = Conv(1, 1, name="squeeze"), Conv(2, 1, name="excite")
    squeeze.build((None, 1, 1, 2))
    excite.build((None, 1, 1, 1))
    excite.kernel.assign(np.zeros(excite.kernel.shape))
    features = _half(MAP)

    def scale(bias: Any) -> Any:
        with keras.StatelessScope(state_mapping=[(excite.bias, bias)]):
            return squeeze_and_excite(features, squeeze, excite, activation="silu")

    return _gradient(scale, np.full(2, 6.0), "float32").max()


def bias() -> float:
    """4 * 512 * 512 times 0.1 in bfloat16, 0.10009765625: 104,960."""
    features = _half(np.zeros((4, 512, 512, 4)))
    return _gradient(lambda bias: add_bias(features, bias) * 0.1, np.zeros(4), "float32").max()


def regions() -> float:
    """1,000 boxes of 4x4 bins and 2 channels, all of them over the same 16 cells: 32,000."""
    boxes = ops.convert_to_tensor(np.tile([8.0, 8.0, 40.0, 40.0], (1, 1000, 1)), "float32")
    coarse = _half(np.ones((1, 8, 8, 2)))

    def pool(fine: Any) -> Any:
        maps = {2: fine, 3: coarse}
        return roi_align(maps, boxes, output_size=4, sampling_ratio=1, aligned=True)

    return _gradient(pool, np.ones((1, 16, 16, 2))).sum()


def mask_upsampling() -> float:
    """4 regions of 14x14 pixels: 784 for each number of the kernel."""
    layer = Upsample(2, name="upsample")
    layer.build((None, 14, 14, 2))
    features = _half(np.ones((4, 14, 14, 2)))

    def upsample(kernel: Any) -> Any:
        with keras.StatelessScope(state_mapping=[(layer.kernel, kernel)]):
            return layer(features)

    return _gradient(upsample, np.ones((2, 2, 2, 2)), "float32").max()


EXPECTED = {
    gate: 25600,
    share: 51200,
    attention: 6401,
    open_gate: 63.14,
    bias: 104960,
    regions: 32000,
    mask_upsampling: 784,
}


def find_sums(chosen: Sequence[Callable[[], float]] = tuple(EXPECTED)) -> dict[str, float]:
    """Returns what each function finds, by its name."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return {one.__name__: float(one()) for one in chosen}
    finally:
        keras.config.set_dtype_policy(before)


def _half(values: np.ndarray) -> Any:
    return ops.convert_to_tensor(values, "bfloat16")


def _gradient(function: Callable[[Any], Any], at: np.ndarray, dtype: str = "bfloat16") -> Any:
    """Returns the gradient of the sum of the outputs, traced and compiled, as float32.

    All that `function` is computed from is made outside it: TensorFlow computes what depends on
    constants alone while it compiles, by kernels that no training uses and that do lose terms.
    """
    start = ops.convert_to_tensor(at, dtype)

    def total(values: Any) -> Any:
        return ops.sum(ops.cast(function(values), "float32"))

    if keras.backend.backend() == "jax":
        import jax

        return np.asarray(ops.cast(jax.jit(jax.grad(total))(start), "float32"))
    import tensorflow as tf

    @tf.function(autograph=False)
    def compute(values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            found = total(values)
        return tf.cast(tf.convert_to_tensor(tape.gradient(found, values)), tf.float32)

    return compute(start).numpy()


if __name__ == "__main__":
    print(json.dumps(find_sums()))
