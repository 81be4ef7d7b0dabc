"""A block of SE-ResNeXt, and a command that runs it on KERAS_BACKEND=jax.

`test_seresnext.py` runs this file in a process of its own, since Keras has one backend a process;
outputs, gradients and moved statistics go out as .npz.
"""

import functools
import sys
from typing import Any

import keras
import numpy as np

from trainkit.backbones.batch_norm import BatchNorm
from trainkit.backbones.layers import ConvNorm
from trainkit.backbones.residual import ResidualBlock, bottleneck_convs

INPUTS = np.random.default_rng(0).normal(size=(2, 6, 8, 48)).astype(np.float32)
FACTORS = np.random.default_rng(1).normal(size=(2, 3, 4, 128)).astype(np.float32)


def make_block() -> ResidualBlock:
    """A block of stride 2 from 48 to 128 channels, 64 within, in 32 groups; weights drawn."""
    make = functools.partial(
        ConvNorm,
        make_norm=functools.partial(BatchNorm, momentum=0.9, epsilon=1e-5),
        explicit_padding=True,
    )
    block = ResidualBlock(
        convs=bottleneck_convs(make, width=64, filters=128, strides=2, groups=32),
        shortcut=make(128, 1, strides=2, name="shortcut"),
        squeezed=8,
        name="block0",
    )
    block.build(INPUTS.shape)
    rng = np.random.default_rng(2)
    for variable in sorted(block.variables, key=lambda v: v.path):
        shape = variable.shape
        if variable.path.endswith("kernel"):
            value = rng.normal(0, 1 / np.sqrt(np.prod(shape[:3])), shape)
        else:
            value = rng.uniform(0.5, 1.5, shape)
        variable.assign(value.astype(np.float32))
    return block


def weighted_sum(block: ResidualBlock) -> Any:
    """A number whose gradient reaches every variable."""
    return keras.ops.sum(block(INPUTS, training=True) * FACTORS)


def main(results_path: str) -> None:
    import jax

    block = make_block()
    trained, others = block.trainable_variables, block.non_trainable_variables

    def moved_sum(values):
        with keras.StatelessScope(state_mapping=list(zip(trained, values))) as scope:  # noqa: B905
            total = weighted_sum(block)
        return total, [scope.get_current_value(v) for v in others]

    results: dict[str, Any] = {"inference": jax.jit(lambda: block(INPUTS))()}
    gradient = jax.jit(jax.value_and_grad(moved_sum, has_aux=True))
    (results["total"], moved), gradients = gradient([v.value for v in trained])
    results |= {f"gradients/{v.path}": g for v, g in zip(trained, gradients, strict=True)}
    results |= {f"moved/{v.path}": value for v, value in zip(others, moved, strict=True)}
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in results.items()}
    np.savez(results_path, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
