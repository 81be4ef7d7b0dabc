"""ResNet (He et al., arXiv 1512.03385) as a feature extractor.

The stride of a bottleneck block is on its 3x3 convolution (known as v1.5; the paper has it on the
first 1x1), and the last scale of every residual block begins at 0, so that a block begins as the
identity (Goyal et al., arXiv 1706.02677, section 5.1).
"""

import functools
from typing import Any

import keras

from trainkit.backbones.batch_norm import Tensor
from trainkit.backbones.layers import ConvNorm

ops: Any = keras.ops  # annotated with None among its results

# Depth: (blocks of each stage, whether they are bottlenecks).
RESNETS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}
_EXPANSION = 4  # of a bottleneck's channels in its output


class ResidualBlock(keras.layers.Layer):
    """Two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1, beside a shortcut.

    Args:
        filters: Channels of the 3x3 convolutions.
        strides: Step of the block, 1 or 2.
        bottleneck: Whether the block is a bottleneck; it then puts out 4 times `filters`.
        conv_norm: Makes a `ConvNorm`, with the settings that all of them share.
        name: Name of the layer.
    """

    def __init__(self, *, filters: int, strides: int, bottleneck: bool, conv_norm: Any, name: str):
        super().__init__(name=name)
        self.strides = strides
        self.filters_out = filters * _EXPANSION if bottleneck else filters
        self.shortcut = conv_norm(self.filters_out, 1, strides=strides, name="shortcut")
        if bottleneck:
            self.convs = [
                conv_norm(filters, 1, activation="relu", name="conv1"),
                conv_norm(filters, 3, strides=strides, activation="relu", name="conv2"),
                conv_norm(self.filters_out, 1, zero_gamma=True, name="conv3"),
            ]
        else:
            self.convs = [
                conv_norm(filters, 3, strides=strides, activation="relu", name="conv1"),
                conv_norm(filters, 3, zero_gamma=True, name="conv2"),
            ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables; the shortcut has some only where shapes differ."""
        self.projects = self.strides > 1 or input_shape[-1] != self.filters_out
        if self.projects:
            self.shortcut.build(input_shape)
        shape = input_shape
        for conv in self.convs:
            conv.build(shape)
            shape = (*input_shape[:-1], conv.filters)

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Maps [B, H, W, channels] to [B, H / strides, W / strides, filters_out]."""
        shortcut = self.shortcut(inputs, training=training) if self.projects else inputs
        outputs = inputs
        for conv in self.convs:
            outputs = conv(outputs, training=training)
        return ops.relu(outputs + shortcut)


class ResNet(keras.layers.Layer):
    """Images [B, H, W, 3] to features of the levels 2 to 5 (strides 4 to 32).

    Args:
        depth: 18, 34, 50, 101, 152 or 200.
        batch_norm_momentum: As `BatchNorm.momentum`.
        batch_norm_epsilon: As `BatchNorm.epsilon`.
        synchronized: As `BatchNorm.synchronized`.
        name: Name of the layer, the root of its variables' paths.

    Raises:
        ValueError: A depth that there is no ResNet of.
    """

    def __init__(
        self,
        *,
        depth: int,
        batch_norm_momentum: float = 0.997,
        batch_norm_epsilon: float = 1e-4,
        synchronized: bool = False,
        name: str = "backbone",
    ):
        super().__init__(name=name)
        if depth not in RESNETS:
            raise ValueError(f"ResNet depth is {depth}; choose one of {sorted(RESNETS)}.")
        counts, bottleneck = RESNETS[depth]
        conv_norm = functools.partial(
            ConvNorm,
            batch_norm_momentum=batch_norm_momentum,
            batch_norm_epsilon=batch_norm_epsilon,
            synchronized=synchronized,
            explicit_padding=True,
        )
        self.stem = conv_norm(64, 7, strides=2, activation="relu", name="conv")
        self.stages = [
            [
                ResidualBlock(
                    filters=64 * 2**stage,
                    strides=2 if stage > 0 and index == 0 else 1,
                    bottleneck=bottleneck,
                    conv_norm=conv_norm,
                    name=f"block{index}",
                )
                for index in range(count)
            ]
            for stage, count in enumerate(counts)
        ]
        self.channels = {
            stage + 2: blocks[-1].filters_out for stage, blocks in enumerate(self.stages)
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
        outputs = ops.max_pool(self.stem(images, training=training), 3, 2, padding="same")
        features = {}
        for level, blocks in enumerate(self.stages, start=2):
            for block in blocks:
                outputs = block(outputs, training=training)
            features[level] = outputs
        return features
