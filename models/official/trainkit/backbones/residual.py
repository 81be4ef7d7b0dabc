"""Residual blocks and networks of them (He et al., arXiv 1512.03385).

The last scale of a block is initialized to 0, so that the block starts as the identity (Goyal et
al., arXiv 1706.02677, section 5.1).
"""

from collections.abc import Callable, Sequence

import keras

from tpudet.trainkit.backbones.gradient_checkpointing import call_checkpointed
from tpudet.trainkit.backbones.layers import HE_FAN_OUT, Conv, ConvNorm, squeeze_and_excite
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

MakeConvNorm = Callable[..., ConvNorm]  # makes a ConvNorm with the network's settings


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
        make: makes a `ConvNorm`.
        width: channels of the 3x3 convolution.
        filters: output channels.
        strides: stride of the block, 1 or 2.
        groups: groups of the 3x3 convolution.
        strides_first: whether the first 1x1 has the stride, as in the paper, or the 3x3.
    """
    first, second = (strides, 1) if strides_first else (1, strides)
    return [
        make(width, 1, strides=first, activation="relu", name="conv1"),
        make(width, 3, strides=second, groups=groups, activation="relu", name="conv2"),
        make(filters, 1, zero_gamma=True, name="conv3"),
    ]


class ResidualBlock(keras.layers.Layer):
    """A sequence of convolutions plus a shortcut.

    Args:
        convs: the convolutions in order.
        shortcut: the projection of the shortcut; None if input and output have the same shape.
        squeezed: channels between squeeze and excitation; 0 means neither.
        drop_block: makes a `DropBlock` from a seed and a name, for each normalisation and the
            shortcut. They drop nothing while the block is frozen.
        seed: seed of the first `DropBlock`; the next ones get the numbers after it.
        name: name of the layer.
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
        outputs, drops = inputs, training and bool(self.trainable_variables)
        for index, conv in enumerate(self.convs):
            outputs = conv(outputs, training=training)
            if self.drop_blocks:  # before or after ReLU makes no difference
                outputs = self.drop_blocks[index](outputs, training=drops)
        if self.squeezed:
            outputs = squeeze_and_excite(outputs, self.squeeze, self.excite, activation="relu")
        shortcut = self.shortcut(inputs, training=training) if self.shortcut else inputs
        if self.drop_blocks:
            shortcut = self.drop_blocks[-1](shortcut, training=drops)
        return ops.relu(outputs + shortcut)


class ResidualNetwork(keras.layers.Layer):
    """Maps images [B, H, W, 3] to features of levels 2 to `max_level` (strides 4 to 32).

    Args:
        stem: the first convolution.
        blocks_per_stage: number of blocks of each stage; the first stage makes level 2.
        block: makes a block from the stage number, from 1, and its index in the stage, from 0.
        max_level: coarsest level; later stages are not created.
        symmetric_pooling: whether the max-pooling after the stem is padded equally on all sides;
            otherwise bottom and right first.
        gradient_checkpointing: whether activations inside a block are recomputed in the backward
            pass instead of being stored.
        name: name of the layer, the root of its variables' paths.
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
        if self.symmetric_pooling:  # zeros are never above an output of ReLU
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
