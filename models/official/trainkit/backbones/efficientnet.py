"""EfficientNet b0 to b8 (Tan and Le, arXiv 1905.11946) as a feature extractor, without its top."""

import functools
import math
from typing import Any, NamedTuple

import keras

from trainkit.backbones.batch_norm import Tensor
from trainkit.backbones.layers import HE_FAN_OUT, Conv, ConvNorm

ops: Any = keras.ops  # annotated with None among its results

_DIVISOR = 8  # channels are multiples of it
_SQUEEZE_RATIO = 0.25  # of a block's input channels

# Variant: (width, depth) multipliers.
VARIANTS = {
    "b0": (1.0, 1.0),
    "b1": (1.0, 1.1),
    "b2": (1.1, 1.2),
    "b3": (1.2, 1.4),
    "b4": (1.4, 1.8),
    "b5": (1.6, 2.2),
    "b6": (1.8, 2.6),
    "b7": (2.0, 3.1),
    "b8": (2.2, 3.6),
}


class BlockSpec(NamedTuple):
    """One inverted residual block."""

    kernel_size: int
    strides: int
    expansion: int
    filters_in: int
    filters_out: int


# Repeats, and the first block of each stage of b0.
_STAGES = (
    (1, BlockSpec(3, 1, 1, 32, 16)),
    (2, BlockSpec(3, 2, 6, 16, 24)),
    (2, BlockSpec(5, 2, 6, 24, 40)),
    (3, BlockSpec(3, 2, 6, 40, 80)),
    (3, BlockSpec(5, 1, 6, 80, 112)),
    (4, BlockSpec(5, 2, 6, 112, 192)),
    (1, BlockSpec(3, 1, 6, 192, 320)),
)


def round_filters(filters: int, width: float) -> int:
    """Returns filters * width to the nearest multiple of 8, but never below 90 % of it."""
    exact = filters * width
    rounded = max(_DIVISOR, int(exact + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * exact else rounded


def block_specs(variant: str) -> tuple[BlockSpec, ...]:
    """Returns the blocks of a variant in their order.

    Raises:
        ValueError: A variant that there is no EfficientNet of.
    """
    if variant not in VARIANTS:
        raise ValueError(f"EfficientNet variant is {variant!r}; choose one of {list(VARIANTS)}.")
    width, depth = VARIANTS[variant]
    specs = []
    for repeats, spec in _STAGES:
        filters_in, filters_out = (round_filters(n, width) for n in spec[-2:])
        specs.append(spec._replace(filters_in=filters_in, filters_out=filters_out))
        later = spec._replace(strides=1, filters_in=filters_out, filters_out=filters_out)
        specs.extend([later] * (math.ceil(repeats * depth) - 1))
    return tuple(specs)


def endpoints(specs: tuple[BlockSpec, ...]) -> dict[int, int]:
    """Returns {level: index of the last block at this stride}, levels 1 to 5."""
    strided = [index for index, spec in enumerate(specs) if spec.strides > 1]
    return dict(enumerate([*(index - 1 for index in strided), len(specs) - 1], start=1))


def drop_connect(inputs: Tensor, drawn: Tensor, *, rate: float) -> Tensor:
    """Zeroes the images of [B, H, W, C] that drew less than `rate`, divides the rest by 1 - rate.

    Stochastic depth (Huang et al., arXiv 1603.09382), scaled so that expectations stay when the
    numbers [B] are drawn uniformly from 0..1.
    """
    factors = ops.cast(drawn >= rate, "float32") / (1.0 - rate)
    return inputs * ops.cast(ops.reshape(factors, (-1, 1, 1, 1)), inputs.dtype)


class InvertedResidualBlock(keras.layers.Layer):
    """Expansion, depthwise convolution, squeeze and excitation, projection, identity (MBConv).

    Args:
        spec: Shape of the block.
        drop_rate: Probability that an image skips the block in training; used where the block has
            an identity.
        conv_norm: Makes a `ConvNorm`, with the settings that all of them share.
        name: Name of the layer.
    """

    def __init__(self, *, spec: BlockSpec, drop_rate: float, conv_norm: Any, name: str):
        super().__init__(name=name)
        self.spec = spec
        self.drop_rate = drop_rate
        self.has_identity = spec.strides == 1 and spec.filters_in == spec.filters_out
        filters = spec.filters_in * spec.expansion
        self.expand = conv_norm(filters, 1, activation="silu", name="expand")
        self.depthwise = conv_norm(
            filters,
            spec.kernel_size,
            strides=spec.strides,
            kind="depthwise",
            # Counted over the one output that each kernel has.
            kernel_initializer=keras.initializers.RandomNormal(
                stddev=math.sqrt(2.0) / spec.kernel_size
            ),
            activation="silu",
            name="depthwise",
        )
        squeezed = max(1, int(spec.filters_in * _SQUEEZE_RATIO))
        self.squeeze = Conv(squeezed, 1, kernel_initializer=HE_FAN_OUT, name="squeeze")
        self.excite = Conv(filters, 1, kernel_initializer=HE_FAN_OUT, name="excite")
        self.project = conv_norm(spec.filters_out, 1, name="project")

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables; a block of expansion 1 has none in `expand`."""
        if self.spec.expansion > 1:
            self.expand.build(input_shape)
        wide = (*input_shape[:-1], self.spec.filters_in * self.spec.expansion)
        self.depthwise.build(wide)
        self.squeeze.build(wide)
        self.excite.build((None, 1, 1, self.squeeze.filters))
        self.project.build(wide)

    def call(self, inputs: Tensor, drawn: Tensor | None = None, training: bool = False) -> Tensor:
        """Maps [B, H, W, filters_in] to [B, H / strides, W / strides, filters_out].

        `drawn`, [B] of 0..1, decides which images skip the block; without it none does.
        """
        outputs = inputs
        if self.spec.expansion > 1:
            outputs = self.expand(outputs, training=training)
        outputs = self.depthwise(outputs, training=training)
        squeezed = ops.silu(self.squeeze(ops.mean(outputs, axis=(1, 2), keepdims=True)))
        outputs = outputs * ops.sigmoid(self.excite(squeezed))
        outputs = self.project(outputs, training=training)
        if not self.has_identity:
            return outputs
        if drawn is not None and self.drop_rate > 0:
            outputs = drop_connect(outputs, drawn, rate=self.drop_rate)
        return outputs + inputs


class EfficientNet(keras.layers.Layer):
    """Images [B, H, W, 3] to features of the levels 2 to 5 (strides 4 to 32).

    Args:
        variant: "b0" to "b8".
        drop_connect_rate: Probability that an image skips the last block in training; it grows
            linearly from 0 at the first.
        batch_norm_momentum: As `BatchNorm.momentum`.
        batch_norm_epsilon: As `BatchNorm.epsilon`.
        synchronized: As `BatchNorm.synchronized`.
        seed: Seed of the drops. The generator's state is a variable, so that a restored run
            continues the sequence.
        name: Name of the layer, the root of its variables' paths.

    Raises:
        ValueError: A variant that there is no EfficientNet of.
    """

    def __init__(
        self,
        *,
        variant: str,
        drop_connect_rate: float = 0.2,
        batch_norm_momentum: float = 0.99,
        batch_norm_epsilon: float = 1e-3,
        synchronized: bool = False,
        seed: int = 0,
        name: str = "backbone",
    ):
        super().__init__(name=name)
        specs = block_specs(variant)
        conv_norm = functools.partial(
            ConvNorm,
            batch_norm_momentum=batch_norm_momentum,
            batch_norm_epsilon=batch_norm_epsilon,
            synchronized=synchronized,
        )
        with keras.name_scope(name):
            self.drop_connect_seed = keras.random.SeedGenerator(seed, name="drop_connect")
        self.stem = conv_norm(specs[0].filters_in, 3, strides=2, activation="silu", name="conv")
        self.blocks = [
            InvertedResidualBlock(
                spec=spec,
                drop_rate=drop_connect_rate * index / len(specs),
                conv_norm=conv_norm,
                name=f"blocks_{index}",
            )
            for index, spec in enumerate(specs)
        ]
        self.levels = {index: level for level, index in endpoints(specs).items() if level >= 2}
        self.channels = {level: specs[index].filters_out for index, level in self.levels.items()}

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables under stem/conv/... and blocks_0/depthwise/..."""
        with keras.name_scope("stem"):
            self.stem.build(input_shape)
        for block in self.blocks:
            block.build((None, None, None, block.spec.filters_in))

    def call(self, images: Tensor, training: bool = False) -> dict[int, Tensor]:
        """Returns {level: features [B, H / 2**level, W / 2**level, channels[level]]}."""
        drawn: list[Tensor | None] = [None] * len(self.blocks)
        if training:
            shape = (len(self.blocks), ops.shape(images)[0])
            numbers = keras.random.uniform(shape, seed=self.drop_connect_seed)
            drawn = [numbers[index] for index in range(len(self.blocks))]
        outputs = self.stem(images, training=training)
        features = {}
        for index, block in enumerate(self.blocks):
            outputs = block(outputs, drawn=drawn[index], training=training)
            if index in self.levels:
                features[self.levels[index]] = outputs
        return features
