"""The backbone's features as they are."""

from collections.abc import Mapping
from typing import Any

import keras

from tpudet.trainkit.backbones.batch_norm import BatchNorm, MakeNorm
from tpudet.trainkit.backbones.layers import Conv
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results

COARSEST_BACKBONE_LEVEL = 5


class FPN(keras.layers.Layer):
    """Backbone features to one feature map a level, all of `num_filters` channels.

    Levels up to 5: 1x1 convolutions, each coarser one doubled and added, then 3x3 convolutions.
    Level 6 is a strided 3x3 convolution of level 5, every level above it one of the ReLU of the
    level before (arXiv 1708.02002, section 4). Deviation from both papers: batch normalisation,
    without activation, on all levels.

    Args:
        min_level: Finest level, 2 to 5.
        max_level: Coarsest level.
        num_filters: Channels of every level.
        separable: Whether all convolutions are depthwise and then 1x1.
        make_norm: Makes each `BatchNorm`, with the settings that all share.
        name: Name of the layer, the root of its variables' paths.

    Raises:
        ValueError: Levels that a backbone of levels 2 to 5 cannot give.
    """

    def __init__(
        self,
        *,
        min_level: int = 3,
        max_level: int = 7,
        num_filters: int = 256,
        separable: bool = False,
        make_norm: MakeNorm = BatchNorm,
        name: str = "neck",
    ):
        super().__init__(name=name)
        if not 2 <= min_level <= min(max_level, COARSEST_BACKBONE_LEVEL):
            raise ValueError(
                f"The pyramid has min_level={min_level} and max_level={max_level}; min_level must "
                f"be 2 to 5 and not over max_level."
            )
        kind = "separable" if separable else "full"
        self.levels = range(min_level, max_level + 1)
        self.backbone_levels = range(min_level, min(max_level, COARSEST_BACKBONE_LEVEL) + 1)
        self.num_filters = num_filters
        self.laterals = {
            level: Conv(num_filters, 1, kind=kind, name=f"lateral{level}")
            for level in self.backbone_levels
        }
        self.convs = {
            level: Conv(
                num_filters,
                3,
                strides=1 if level in self.backbone_levels else 2,
                kind=kind,
                name=f"conv{level}",
            )
            for level in self.levels
        }
        self.norms = {level: make_norm(name=f"norm{level}") for level in self.levels}

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Creates the variables for {level: shape of the backbone's features}."""
        shape = (None, None, None, self.num_filters)
        for level, lateral in self.laterals.items():
            lateral.build(input_shape[level])
        for level in self.levels:
            self.convs[level].build(shape)
            self.norms[level].build(shape)

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns {level: [B, H / 2**level, W / 2**level, num_filters]} of the pyramid's levels."""
        pyramid = {}
        coarser = None
        for level in reversed(self.backbone_levels):
            merged = self.laterals[level](features[level])
            if coarser is not None:
                merged = merged + upsample_nearest(coarser)
            coarser = merged
            pyramid[level] = self.convs[level](merged)
        for level in self.levels[len(self.backbone_levels) :]:
            before = pyramid[level - 1]
            if level > COARSEST_BACKBONE_LEVEL + 1:
                before = ops.relu(before)
            pyramid[level] = self.convs[level](before)
        return {
            level: self.norms[level](pyramid[level], training=training) for level in self.levels
        }


def upsample_nearest(features: Tensor, factor: int = 2) -> Tensor:
    """Makes every pixel of [B, H, W, C] a square of `factor` times `factor` pixels."""
    return ops.repeat(ops.repeat(features, factor, axis=1), factor, axis=2)


class IdentityNeck(keras.layers.Layer):
    """Passes one level of the backbone on; it has no variables.

    One, because all levels share a head, and backbones have more channels on every coarser level.

    Args:
        level: The backbone's level, 2 to 5.
        name: Name of the layer.
    """

    def __init__(self, *, level: int, name: str = "neck"):
        super().__init__(name=name)
        self.level = level

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Learns `num_filters` from {level: shape of the backbone's features}."""
        self.num_filters = input_shape[self.level][-1]

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns the features of the level, untouched."""
        return {self.level: features[self.level]}
