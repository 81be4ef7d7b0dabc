"""Parts of the backbones at a small size, and a command that runs them on KERAS_BACKEND=jax.

`test_other_backend.py` runs this file in a process of its own, since Keras has one backend a
process; outputs, gradients and moved statistics go out as .npz.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import zero_squares
from tpudet.trainkit.backbones.inverted_residual import InvertedResidualBlock
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.residual import (
    ResidualBlock,
    ResidualNetwork,
    basic_convs,
    bottleneck_convs,
)

MAKE_NORM = functools.partial(BatchNorm, momentum=0.9, epsilon=1e-5)
MAKE = functools.partial(ConvNorm, make_norm=MAKE_NORM, explicit_padding=True)


class Part(NamedTuple):
    """Something to run: its variables, and what it makes in training or not."""

    trained: Sequence[keras.Variable]
    others: Sequence[keras.Variable]
    run: Callable[[bool], Any]


def drawn(shape: Sequence[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def built(layer: Any, shape: tuple[int, ...], call: Callable[..., Any]) -> Part:
    """A layer with weights drawn, called with drawn inputs."""
    layer.build(shape)
    rng = np.random.default_rng(2)
    for variable in sorted(layer.variables, key=lambda v: v.path):
        if variable.path.endswith("kernel"):
            size = np.sqrt(np.prod(variable.shape[:3]))
            value = rng.normal(0, 1 / size, variable.shape)
        else:
            value = rng.uniform(0.5, 1.5, variable.shape)
        variable.assign(value.astype(np.float32))
    inputs = drawn(shape)
    return Part(
        layer.trainable_variables,
        layer.non_trainable_variables,
        lambda training: call(inputs, training=training),
    )


def seresnext_block() -> Part:
    """A block of stride 2 from 48 to 128 channels, 64 within, in 32 groups."""
    block = ResidualBlock(
        convs=bottleneck_convs(MAKE, width=64, filters=128, strides=2, groups=32),
        shortcut=MAKE(128, 1, strides=2, name="shortcut"),
        squeezed=8,
        name="block0",
    )
    return built(block, (2, 6, 8, 48), block)


def inverted_block(lite: bool) -> Part:
    """A block with an identity, which the second of three images skips."""
    block = _inverted(
        kernel_size=5,
        filters_expanded=32,
        activation="relu6" if lite else "silu",
        squeezed=0 if lite else 2,
        drop_rate=0.5,
    )
    draws = np.array([0.6, 0.4, 0.9], np.float32)
    return built(block, (3, 6, 7, 8), functools.partial(block, drawn=draws))


def mobile_block() -> Part:
    """A block with an identity and hard gates."""
    block = _inverted(
        kernel_size=3,
        filters_expanded=24,
        activation="hard_silu",
        squeezed=8,
        squeeze_activation="relu",
        gate="hard_sigmoid",
    )
    return built(block, (2, 6, 7, 8), block)


def _inverted(**settings: Any) -> InvertedResidualBlock:
    return InvertedResidualBlock(
        strides=1, filters_in=8, filters_out=8, conv_norm=MAKE, name="block1", **settings
    )


def network(symmetric: bool) -> Part:
    """Stem, pooling and a block; of 18x22 pixels, which are 9x11 before the pooling."""
    layer = ResidualNetwork(
        stem=MAKE(8, 3, strides=2, activation="relu", name="conv"),
        blocks_per_stage=[1],
        block=lambda stage, index: ResidualBlock(
            convs=basic_convs(MAKE, filters=8, strides=1), shortcut=None, name="block0"
        ),
        max_level=2,
        symmetric_pooling=symmetric,
        gradient_checkpointing=False,
        name="backbone",
    )
    return built(layer, (2, 18, 22, 3), lambda *args, **settings: layer(*args, **settings)[2])


def squares() -> Part:
    """DropBlock's squares of side 3 whose corners are given; the maps are what is trained."""
    maps = keras.Variable(drawn((2, 7, 9, 4)), name="maps")
    corners = np.random.default_rng(3).uniform(size=(2, 5, 7, 4)).astype(np.float32)

    def run(training: bool) -> Any:
        return zero_squares(keras.ops.square(maps), corners, side=3, drop_rate=0.3)

    return Part([maps], [], run)


PARTS: dict[str, Callable[[], Part]] = {
    "seresnext": seresnext_block,
    "inverted": functools.partial(inverted_block, lite=False),
    "inverted_lite": functools.partial(inverted_block, lite=True),
    "mobile": mobile_block,
    "symmetric_pooling": functools.partial(network, symmetric=True),
    "plain_pooling": functools.partial(network, symmetric=False),
    "squares": squares,
}


def weighted_sum(part: Part) -> Any:
    """A number whose gradient reaches every variable."""
    outputs = part.run(True)
    return keras.ops.sum(outputs * drawn(outputs.shape, seed=1))


def main(results_path: str) -> None:
    import jax

    results: dict[str, Any] = {}
    for name, make in PARTS.items():
        part = make()

        def moved_sum(values: Any, part: Part = part) -> Any:
            state = list(zip(part.trained, values, strict=True))
            with keras.StatelessScope(state_mapping=state) as scope:
                total = weighted_sum(part)
            return total, [scope.get_current_value(v) for v in part.others]

        def inference(part: Part = part) -> Any:
            return part.run(False)

        gradient = jax.jit(jax.value_and_grad(moved_sum, has_aux=True))
        (total, moved), gradients = gradient([v.value for v in part.trained])
        found = {"inference": jax.jit(inference)(), "total": total}
        found |= {f"gradients/{v.path}": g for v, g in zip(part.trained, gradients, strict=True)}
        found |= {f"moved/{v.path}": x for v, x in zip(part.others, moved, strict=True)}
        results |= {f"{name}/{key}": np.asarray(value) for key, value in found.items()}
    np.savez(results_path, **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
