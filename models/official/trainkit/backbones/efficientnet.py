"""EfficientNet as a feature extractor, without its top: b0 to b8 and lite0 to lite4.

b0 to b8 follow Tan and Le (arXiv 1905.11946). The lite variants, by the same authors for phones,
have ReLU6 activations and no squeeze and excitation; their stem is not scaled by width, and their
first and last stage are not scaled by depth.
"""

import functools
import math
from typing import Literal, NamedTuple

import keras

from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.gradient_checkpointing import call_checkpointed
from tpudet.trainkit.backbones.inverted_residual import InvertedResidualBlock
from tpudet.trainkit.backbones.layers import Activation, ConvNorm
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_DIVISOR = 8  # channels are multiples of it
_SQUEEZE_RATIO = 0.25  # of a block's input channels
_STEM_FILTERS = 32


class Variant(NamedTuple):
    """The scaling of one EfficientNet."""

    width: float  # multiplies channels
    depth: float  # multiplies the blocks of a stage
    lite: bool = False


VARIANTS = {
    "b0": Variant(1.0, 1.0),
    "b1": Variant(1.0, 1.1),
    "b2": Variant(1.1, 1.2),
    "b3": Variant(1.2, 1.4),
    "b4": Variant(1.4, 1.8),
    "b5": Variant(1.6, 2.2),
    "b6": Variant(1.8, 2.6),
    "b7": Variant(2.0, 3.1),
    "b8": Variant(2.2, 3.6),
    "lite0": Variant(1.0, 1.0, lite=True),
    "lite1": Variant(1.0, 1.1, lite=True),
    "lite2": Variant(1.1, 1.2, lite=True),
    "lite3": Variant(1.2, 1.4, lite=True),
    "lite4": Variant(1.4, 1.8, lite=True),
}


class BlockSpec(NamedTuple):
    """One inverted residual block."""

    stage: int  # from 1
    kernel_size: int
    strides: int
    expansion: int
    filters_in: int
    filters_out: int


# Stages of b0: blocks, kernel size, strides of the first block, expansion, output channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def round_filters(filters: int, width: float) -> int:
    """Rounds filters * width to the nearest multiple of 8, but never below 90 % of it."""
    exact = filters * width
    rounded = max(_DIVISOR, int(exact + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * exact else rounded


def block_specs(variant: str) -> tuple[BlockSpec, ...]:
    """Returns the blocks of a variant in order.

    Raises:
        ValueError: an unknown variant.
    """
    if variant not in VARIANTS:
        raise ValueError(f"EfficientNet variant is {variant!r}; choose one of {list(VARIANTS)}.")
    width, depth, lite = VARIANTS[variant]
    specs = []
    filters_in = _STEM_FILTERS if lite else round_filters(_STEM_FILTERS, width)
    for stage, (repeats, kernel_size, strides, expansion, filters) in enumerate(_STAGES, start=1):
        filters_out = round_filters(filters, width)
        fixed = lite and stage in (1, len(_STAGES))
        for index in range(repeats if fixed else math.ceil(repeats * depth)):
            step = strides if index == 0 else 1
            specs.append(BlockSpec(stage, kernel_size, step, expansion, filters_in, filters_out))
            filters_in = filters_out
    return tuple(specs)


def endpoints(specs: tuple[BlockSpec, ...]) -> dict[int, int]:
    """Returns {level: index of the last block at its stride}, for levels 1 to 5."""
    strided = [index for index, spec in enumerate(specs) if spec.strides > 1]
    return dict(enumerate([*(index - 1 for index in strided), len(specs) - 1], start=1))


class EfficientNet(keras.layers.Layer):
    """Maps images [B, H, W, 3] to features of levels 2 to `max_level` (strides 4 to 32).

    Args:
        variant: "b0" to "b8", "lite0" to "lite4".
        style: padding of strided convolutions: "tensorflow" (and Keras) pads bottom and right
            first, "torch" equally on all sides. Weights need the style they were trained with.
        drop_connect_rate: probability that an image skips a block in training, frozen or not. It
            grows linearly from 0 at the first block and would reach this value one block after the
            last.
        max_level: coarsest level; later blocks are not created.
        gradient_checkpointing: whether activations inside a block are recomputed in the backward
            pass instead of being stored.
        make_norm: makes each `BatchNorm` with the network's settings.
        seed: seed of the drops. The generator's state is a variable, so that a restored run
            continues the sequence.
        name: name of the layer, the root of its variables' paths.

    Raises:
        ValueError: an unknown variant.
    """

    def __init__(
        self,
        *,
        variant: str,
        style: Literal["tensorflow", "torch"] = "tensorflow",
        drop_connect_rate: float,
        max_level: int = 5,
        gradient_checkpointing: bool = False,
        make_norm: MakeNorm,
        seed: int = 0,
        name: str = "backbone",
    ):
        super().__init__(name=name)
        self.gradient_checkpointing = gradient_checkpointing
        self.style = style  # compared with what loaded weights expect
        specs = block_specs(variant)
        self.specs = specs
        lite = VARIANTS[variant].lite
        activation: Activation = "relu6" if lite else "silu"
        conv_norm = functools.partial(
            ConvNorm, make_norm=make_norm, explicit_padding=style == "torch"
        )
        with keras.name_scope(name):
            self.drop_connect_seed = keras.random.SeedGenerator(seed, name="drop_connect")
        self.stem = conv_norm(
            specs[0].filters_in,
            3,
            strides=2,
            activation=activation,
            name="conv",
        )
        ends = endpoints(specs)
        self.blocks = [
            InvertedResidualBlock(
                kernel_size=spec.kernel_size,
                strides=spec.strides,
                filters_in=spec.filters_in,
                filters_expanded=spec.filters_in * spec.expansion,
                filters_out=spec.filters_out,
                activation=activation,
                squeezed=0 if lite else max(1, int(spec.filters_in * _SQUEEZE_RATIO)),
                drop_rate=drop_connect_rate * index / len(specs),
                conv_norm=conv_norm,
                name=f"block{index}",
            )
            for index, spec in enumerate(specs[: ends[max_level] + 1])
        ]
        self.levels = {index: level for level, index in ends.items() if 2 <= level <= max_level}
        self.channels = {level: specs[index].filters_out for index, level in self.levels.items()}

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables under stem/conv/... and stage1/block0/depthwise/..."""
        with keras.name_scope("stem"):
            self.stem.build(input_shape)
        for block, spec in zip(self.blocks, self.specs, strict=False):
            with keras.name_scope(f"stage{spec.stage}"):
                block.build((None, None, None, spec.filters_in))

    def call(self, images: Tensor, training: bool = False) -> dict[int, Tensor]:
        """Returns {level: features [B, H / 2**level, W / 2**level, channels[level]]}."""
        drawn: Tensor = None
        if training:
            shape = (len(self.blocks), ops.shape(images)[0])
            drawn = keras.random.uniform(shape, seed=self.drop_connect_seed)
        outputs = self.stem(images, training=training)
        features = {}
        for index, block in enumerate(self.blocks):
            if not training:
                outputs = block(outputs)
            elif self.gradient_checkpointing:
                outputs = call_checkpointed(block, outputs, drawn[index])
            else:
                outputs = block(outputs, drawn[index], training=True)
            if index in self.levels:
                features[self.levels[index]] = outputs
        return features
