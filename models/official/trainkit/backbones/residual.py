"""What networks of residual blocks (He et al., arXiv 1512.03385) are made of.

The last scale of a block begins at 0, so that a block begins as the identity (Goyal et al.,
arXiv 1706.02677, section 5.1).
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tpudet.trainkit.backbones.batch_norm import Tensor
from tpudet.trainkit.backbones.gradient_checkpointing import call_checkpointed
from tpudet.trainkit.backbones.layers import HE_FAN_OUT, Conv, ConvNorm, squeeze_and_excite

ops: Any = keras.ops  # annotated with None among its results

MakeConvNorm = Callable[..., ConvNorm]  # a ConvNorm with the settings that all in a network share


def basic_convs(make: MakeConvNorm, *, filters: int, strides: int) -> list[ConvNorm]:
    """Returns two 3x3 convolutions."""
    return [
        make(filters, 3, strides=strides, activation="relu", name="conv1"),
        make(filters, 3, zero_gamma=True, name="conv2"),
    ]


def bottleneck_convs(
    make: MakeConvNorm,
    *,
    width: int,
    filters: int,
    strides: int,
    groups: int = 1,
    strides_first: bool = False,
) -> list[ConvNorm]:
    """Returns 1x1, 3x3 and 1x1 convolutions.

    Args:
        make: Makes a `ConvNorm`.
        width: Channels of the 3x3 convolution.
        filters: Channels that come out.
        strides: Step of the block, 1 or 2.
        groups: Groups of the 3x3 convolution.
        strides_first: Whether the step is on the first 1x1, as in the paper, or on the 3x3.
    """
    first, second = (strides, 1) if strides_first else (1, strides)
    return [
        make(width, 1, strides=first, activation="relu", name="conv1"),
        make(width, 3, strides=second, groups=groups, activation="relu", name="conv2"),
        make(filters, 1, zero_gamma=True, name="conv3"),
    ]


class ResidualBlock(keras.layers.Layer):
    """Convolutions beside a shortcut.

    Args:
        convs: The convolutions, one after another.
        shortcut: The projection beside them, where the input has another shape than the output.
        squeezed: Channels between squeeze and excitation; 0 for a block without.
        drop_block: Makes a `DropBlock` from a seed and a name; one follows each normalisation, and
            the shortcut.
        seed: Seed of the first `DropBlock`; the others count on from it.
        name: Name of the layer.
    """

    def __init__(
        self,
        *,
        convs: Sequence[ConvNorm],
        shortcut: ConvNorm | None,
        squeezed: int = 0,
        drop_block: Callable[..., keras.Layer] | None = None,
        seed: int = 0,
        name: str,
    ):
        super().__init__(name=name)
        self.convs = list(convs)
        self.shortcut = shortcut
        self.squeezed = squeezed
        self.filters_out = self.convs[-1].filters
        if squeezed:
            self.squeeze = Conv(squeezed, 1, kernel_initializer=HE_FAN_OUT, name="squeeze")
            self.excite = Conv(self.filters_out, 1, kernel_initializer=HE_FAN_OUT, name="excite")
        names = [*(conv.name for conv in self.convs), "shortcut"]
        self.drop_blocks = [
            drop_block(seed=seed + number, name=f"drop_block_{name}")
            for number, name in enumerate(names)
            if drop_block
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for inputs [B, H, W, channels]."""
        if self.shortcut:
            self.shortcut.build(input_shape)
        shape = input_shape
        for conv in self.convs:
            conv.build(shape)
            shape = (*input_shape[:-1], conv.filters)
        if self.squeezed:
            self.squeeze.build(shape)
            self.excite.build((None, 1, 1, self.squeezed))
        for drop_block in self.drop_blocks:
            drop_block.build(shape)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Maps [B, H, W, channels] to [B, H / strides, W / strides, filters_out]."""
        outputs = inputs
        for index, conv in enumerate(self.convs):
            outputs = conv(outputs, training=training)
            if self.drop_blocks:  # after ReLU is the same as before it
                outputs = self.drop_blocks[index](outputs, training=training)
        if self.squeezed:
            outputs = squeeze_and_excite(outputs, self.squeeze, self.excite, activation="relu")
        shortcut = self.shortcut(inputs, training=training) if self.shortcut else inputs
        if self.drop_blocks:
            shortcut = self.drop_blocks[-1](shortcut, training=training)
        return ops.relu(outputs + shortcut)


class ResidualNetwork(keras.layers.Layer):
    """Images [B, H, W, 3] to features of the levels from 2 on (strides 4 to 32).

    Args:
        stem: The first convolution.
        blocks_per_stage: How many blocks each stage has; there is one for each level from 2 on.
        block: Makes a block from the number of its stage, from 1, and its own there, from 0.
        max_level: Coarsest level; the stages beyond it are left out.
        symmetric_pooling: Whether the pooling after the stem is padded alike on all sides;
            otherwise bottom and right first.
        gradient_checkpointing: Whether, in training, what is inside a block is computed again in
            the backward pass instead of being kept.
        name: Name of the layer, the root of its variables' paths.
    """

    def __init__(
        self,
        *,
        stem: ConvNorm,
        blocks_per_stage: Sequence[int],
        block: Callable[[int, int], ResidualBlock],
        max_level: int,
        symmetric_pooling: bool,
        gradient_checkpointing: bool,
        name: str,
    ):
        super().__init__(name=name)
        self.stem = stem
        self.stages = [
            [block(stage, index) for index in range(count)]
            for stage, count in enumerate(blocks_per_stage[: max_level - 1], start=1)
        ]
        self.symmetric_pooling = symmetric_pooling
        self.gradient_checkpointing = gradient_checkpointing
        self.channels = {
            level: blocks[-1].filters_out for level, blocks in enumerate(self.stages, start=2)
        }

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables under stem/conv/... and stage1/block0/conv1/..."""
        with keras.name_scope("stem"):
            self.stem.build(input_shape)
        channels = self.stem.filters
        for stage, blocks in enumerate(self.stages, start=1):
            with keras.name_scope(f"stage{stage}"):
                for block in blocks:
                    block.build((None, None, None, channels))
                    channels = block.filters_out

    def call(self, images: Tensor, training: bool = False) -> dict[int, Tensor]:
        """Returns {level: features [B, H / 2**level, W / 2**level, channels[level]]}."""
        outputs = self.stem(images, training=training)
        if self.symmetric_pooling:  # by zeros, which are never above what ReLU puts out
            outputs = ops.max_pool(ops.pad(outputs, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, 2)
        else:
            outputs = ops.max_pool(outputs, 3, 2, padding="same")
        features = {}
        for level, blocks in enumerate(self.stages, start=2):
            for block in blocks:
                if training and self.gradient_checkpointing:
                    outputs = call_checkpointed(block, outputs)
                else:
                    outputs = block(outputs, training=training)
            features[level] = outputs
        return features
