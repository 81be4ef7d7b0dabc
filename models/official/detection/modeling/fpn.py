"""The feature pyramid network (Lin et al., arXiv 1612.03144), and the identity neck."""

from collections.abc import Mapping
from typing import Literal

import keras

from tpudet.detection.modeling.pyramid_config import CoarseLevels
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL
from tpudet.trainkit.backbones.layers import Conv, convolve_and_normalize
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class FPN(keras.layers.Layer):
    """Turns backbone features into one feature map per level, with `num_filters` channels each.

    Levels up to 5: a 1x1 convolution, plus the next coarser level upsampled by 2, then a 3x3
    convolution. In RetinaNet level 6 is a strided 3x3 convolution of level 5, the pyramid's or, as
    in the paper, the backbone's, and each level above is one of the ReLU of the level before (arXiv
    1708.02002, section 4); in two-stage detectors each is every second pixel of the level before
    (arXiv 1612.03144, section 4.1). With norms, which neither paper has, every level made by a
    convolution is normalised, without activation.

    Two levels of the backbone may have one stride; the coarser is then added without upsampling.

    Args:
        min_level: finest level, 2 to 5.
        max_level: coarsest level.
        num_filters: channels of every level.
        separable: whether all convolutions are depthwise and then 1x1.
        coarse_levels: how levels 6 and up are made.
        coarse_input: whose level 5 is convolved to level 6.
        coarse_relu: whether a level above 6 is convolved from the ReLU of the level before.
        symmetric_padding: whether strided convolutions pad all sides equally, as PyTorch's do;
            otherwise bottom and right first.
        make_norm: makes each `BatchNorm`; None for none.
        lateral_norms: whether the lateral convolutions have norms too, and then none a bias.
        last_backbone_level: coarsest level that the backbone has.
        name: name of the layer, the first part of its variables' paths.

    Raises:
        ValueError: levels that do not follow from a backbone of levels 2 to 5.
    """

    def __init__(
        self,
        *,
        min_level: int,
        max_level: int,
        num_filters: int,
        separable: bool,
        coarse_levels: CoarseLevels,
        coarse_input: Literal["pyramid", "backbone"],
        coarse_relu: bool,
        symmetric_padding: bool,
        make_norm: MakeNorm | None,
        lateral_norms: bool,
        last_backbone_level: int,
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
        self.backbone_levels = range(min_level, min(max_level, last_backbone_level) + 1)
        self.num_filters = num_filters
        self.coarse_from_backbone = coarse_input == "backbone"
        self.coarse_relu = coarse_relu
        use_bias = not lateral_norms
        convolved = self.backbone_levels if coarse_levels == "subsample" else self.levels
        self.laterals = {
            level: Conv(num_filters, 1, kind=kind, use_bias=use_bias, name=f"lateral{level}")
            for level in self.backbone_levels
        }
        self.convs = {
            level: Conv(
                num_filters,
                3,
                strides=1 if level in self.backbone_levels else 2,
                kind=kind,
                use_bias=use_bias,
                explicit_padding=symmetric_padding,
                name=f"conv{level}",
            )
            for level in convolved
        }
        self.norms = {level: make_norm(name=f"norm{level}") for level in convolved if make_norm}
        self.lateral_norms = {
            level: make_norm(name=f"lateral_norm{level}")
            for level in self.backbone_levels
            if make_norm and lateral_norms
        }

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Creates the variables for {level: shape of the backbone's features}."""
        shape = (None, None, None, self.num_filters)
        for level, lateral in self.laterals.items():
            lateral.build(input_shape[level])
        for level, conv in self.convs.items():
            first = level == self.backbone_levels[-1] + 1
            conv.build(input_shape[level - 1] if first and self.coarse_from_backbone else shape)
        for norm in (*self.norms.values(), *self.lateral_norms.values()):
            norm.build(shape)

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns {level: [B, H / stride, W / stride, num_filters]}, sides rounded up.

        The stride of a level is 2**level; above 5 half of that if the backbone has two levels of
        one stride.
        """
        pyramid = {}
        coarser = None
        for level in reversed(self.backbone_levels):
            merged = self._lateral(features[level], level, training)
            if coarser is not None:
                merged = merged + upsample_nearest(coarser, merged.shape[1] // coarser.shape[1])
            coarser = merged
            pyramid[level] = self.convs[level](merged)
        coarse = self.levels[len(self.backbone_levels) :]
        for level in coarse:
            if level in self.convs:
                before = pyramid[level - 1]
                if level > coarse[0]:
                    before = ops.relu(before) if self.coarse_relu else before
                elif self.coarse_from_backbone:
                    before = features[level - 1]
                pyramid[level] = self.convs[level](before)
        for level, norm in self.norms.items():
            pyramid[level] = norm(pyramid[level], training=training)
        for level in coarse:
            if level not in self.convs:
                pyramid[level] = pyramid[level - 1][:, ::2, ::2]
        return {level: pyramid[level] for level in self.levels}

    def _lateral(self, features: Tensor, level: int, training: bool) -> Tensor:
        lateral, norm = self.laterals[level], self.lateral_norms.get(level)
        if norm is None:
            return lateral(features)
        return convolve_and_normalize(features, lateral, norm, training)


def upsample_nearest(features: Tensor, factor: int = 2) -> Tensor:
    """Repeats every pixel of [B, H, W, C] as a square of `factor` times `factor` pixels."""
    if factor == 1:
        return features
    return ops.repeat(ops.repeat(features, factor, axis=1), factor, axis=2)


class IdentityNeck(keras.layers.Layer):
    """Passes a single level of the backbone through; it has no variables.

    Only one, because all levels share a head and a backbone's levels differ in their channels.

    Args:
        level: the backbone's level, 2 to 5.
        name: name of the layer.
    """

    def __init__(self, *, level: int, name: str = "neck"):
        super().__init__(name=name)
        self.level = level

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Sets `num_filters` from {level: shape of the backbone's features}."""
        self.num_filters = input_shape[self.level][-1]

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns the features of the level, unchanged."""
        return {self.level: features[self.level]}
