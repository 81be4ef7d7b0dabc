"""MobileNetV3-Large as a feature extractor (Howard et al., arXiv 1905.02244, table 1)."""

import functools
from typing import Any, NamedTuple

import keras

from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.efficientnet import round_filters
from tpudet.trainkit.backbones.gradient_checkpointing import call_checkpointed
from tpudet.trainkit.backbones.inverted_residual import InvertedResidualBlock
from tpudet.trainkit.backbones.layers import Activation, ConvNorm
from tpudet.trainkit.types import Tensor

_STEM_FILTERS = 16
_TOP_FILTERS = 960  # of the last convolution
_SQUEEZE_RATIO = 0.25  # of a block's expanded channels


class MobileBlockSpec(NamedTuple):
    """One inverted residual block."""

    stage: int  # from 1
    kernel_size: int
    strides: int
    filters_in: int
    filters_expanded: int
    filters_out: int
    squeezes: bool  # whether it has squeeze and excitation
    activation: Activation


# Stages: kernel size, strides of the first block, expanded channels of each block, output channels,
# squeeze and excitation, activation.
_STAGES: tuple[tuple[int, int, tuple[int, ...], int, bool, Activation], ...] = (
    (3, 1, (16,), 16, False, "relu"),
    (3, 2, (64, 72), 24, False, "relu"),
    (5, 2, (72, 120, 120), 40, True, "relu"),
    (3, 2, (240, 200, 184, 184), 80, False, "hard_silu"),
    (3, 1, (480, 672), 112, True, "hard_silu"),
    (5, 2, (672, 960, 960), 160, True, "hard_silu"),
)


def block_specs() -> tuple[MobileBlockSpec, ...]:
    """Returns the blocks in order."""
    specs = []
    filters_in = _STEM_FILTERS
    for stage, (kernel_size, strides, expanded, filters, squeezes, activation) in enumerate(
        _STAGES, start=1
    ):
        for index, wide in enumerate(expanded):
            step = strides if index == 0 else 1
            specs.append(
                MobileBlockSpec(
                    stage, kernel_size, step, filters_in, wide, filters, squeezes, activation
                )
            )
            filters_in = filters
    return tuple(specs)


def _make_block(spec: MobileBlockSpec, *, conv_norm: Any, name: str) -> InvertedResidualBlock:
    # Unlike EfficientNet's it squeezes to a quarter of the expanded channels, with a ReLU, and its
    # gates are piecewise linear (arXiv 1905.02244, section 5).
    squeezed = round_filters(spec.filters_expanded, _SQUEEZE_RATIO) if spec.squeezes else 0
    return InvertedResidualBlock(
        kernel_size=spec.kernel_size,
        strides=spec.strides,
        filters_in=spec.filters_in,
        filters_expanded=spec.filters_expanded,
        filters_out=spec.filters_out,
        activation=spec.activation,
        squeezed=squeezed,
        squeeze_activation="relu",
        gate="hard_sigmoid",
        conv_norm=conv_norm,
        name=name,
    )


class MobileNetV3(keras.layers.Layer):
    """Maps images [B, H, W, 3] to features of levels 2 to `max_level` (strides 4 to 32).

    Level 5 is the last convolution, of 960 channels, and each other level the last block of its
    stride. With `max_level` 6 the last convolution is level 6, and level 5 the first block of the
    same stride: torchvision's Faster R-CNN has these two.

    Strided convolutions pad all sides equally, as PyTorch's do.

    Args:
        max_level: coarsest level, 2 to 6; later blocks are not created.
        gradient_checkpointing: whether activations inside a block are recomputed in the backward
            pass instead of being stored.
        make_norm: makes each `BatchNorm` with the network's settings.
        name: name of the layer, the root of its variables' paths.
    """

    style = "torch"  # compared with what loaded weights expect

    def __init__(
        self,
        *,
        max_level: int = 5,
        gradient_checkpointing: bool = False,
        make_norm: MakeNorm,
        name: str = "backbone",
    ):
        super().__init__(name=name)
        self.gradient_checkpointing = gradient_checkpointing
        conv_norm = functools.partial(ConvNorm, make_norm=make_norm, explicit_padding=True)
        self.stem = conv_norm(_STEM_FILTERS, 3, strides=2, activation="hard_silu", name="conv")
        self.specs = specs = block_specs()
        strided = [index for index, spec in enumerate(specs) if spec.strides > 1]
        ends = {level: index - 1 for level, index in enumerate(strided[1:], start=2)}
        if max_level > 5:
            ends[5] = strided[-1]
        count = len(specs) if max_level >= 5 else ends[max_level] + 1
        self.blocks = [
            _make_block(spec, conv_norm=conv_norm, name=f"block{index}")
            for index, spec in enumerate(specs[:count])
        ]
        self.levels = {index: level for level, index in ends.items() if level <= max_level}
        self.channels = {level: specs[index].filters_out for index, level in self.levels.items()}
        self.top = None
        if max_level >= 5:
            self.top = conv_norm(_TOP_FILTERS, 1, activation="hard_silu", name="conv")
            self.channels[max_level] = _TOP_FILTERS

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables under stem/conv/..., stage1/block0/..., stage7/block15/conv/..."""
        with keras.name_scope("stem"):
            self.stem.build(input_shape)
        for block, spec in zip(self.blocks, self.specs, strict=False):
            with keras.name_scope(f"stage{spec.stage}"):
                block.build((None, None, None, spec.filters_in))
        if self.top:
            last = self.specs[-1]
            with (
                keras.name_scope(f"stage{last.stage + 1}"),
                keras.name_scope(f"block{len(self.blocks)}"),
            ):
                self.top.build((None, None, None, last.filters_out))

    def call(self, images: Tensor, training: bool = False) -> dict[int, Tensor]:
        """Returns {level: features [B, H / stride, W / stride, channels[level]]}."""
        outputs = self.stem(images, training=training)
        features = {}
        for index, block in enumerate(self.blocks):
            if training and self.gradient_checkpointing:
                outputs = call_checkpointed(block, outputs)
            else:
                outputs = block(outputs, training=training)
            if index in self.levels:
                features[self.levels[index]] = outputs
        if self.top:
            features[max(self.channels)] = self.top(outputs, training=training)
        return features
