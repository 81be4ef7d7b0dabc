"""BiFPN, the feature pyramid of EfficientDet (Tan, Pang and Le, arXiv 1911.09070)."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import keras

from tpudet.detection.modeling.fpn import upsample_nearest
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.low_precision import weigh
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_EPSILON = 1e-4  # of the sum of a node's weights; section 3.3


class FusionNode(NamedTuple):
    """A node of a cell: several feature maps are fused into one of `level`.

    Inputs are numbers of maps: first the inputs of the cell, finest first, then the nodes.
    """

    level: int
    inputs: tuple[int, ...]


def cell_nodes(levels: range) -> tuple[FusionNode, ...]:
    """Returns the nodes of a cell: down to the finest level, then up again.

    A node on the way down fuses the level's input and the coarser node; one on the way up fuses
    all earlier maps of its level and the finer node (figure 2d of the paper).
    """
    maps = {level: [index] for index, level in enumerate(levels)}
    nodes: list[FusionNode] = []
    for level in reversed(levels[:-1]):
        nodes.append(FusionNode(level, (maps[level][0], maps[level + 1][-1])))
        maps[level].append(len(levels) + len(nodes) - 1)
    for level in levels[1:]:
        nodes.append(FusionNode(level, (*maps[level], maps[level - 1][-1])))
        maps[level].append(len(levels) + len(nodes) - 1)
    return tuple(nodes)


class Fusion(keras.layers.Layer):
    """Resamples feature maps to one level, takes their weighted sum, applies SiLU and convolves.

    The convolution is 3x3 and separable, followed by batch normalisation. An input that does not
    have `num_filters` channels first passes a 1x1 convolution and batch normalisation.

    Args:
        input_levels: level of each input.
        level: level of the output; inputs are at most one level away.
        num_filters: channels of the output.
        conv_norm: makes a `ConvNorm` of `num_filters` channels.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        input_levels: Sequence[int],
        level: int,
        num_filters: int,
        conv_norm: Callable[..., ConvNorm],
        name: str,
    ):
        super().__init__(name=name)
        self.input_levels = tuple(input_levels)
        self.level = level
        self.num_filters = num_filters
        self.conv_norm = conv_norm
        self.conv = conv_norm(3, kind="separable", name="conv")

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables for the shapes of the inputs."""
        self.laterals = {
            index: self.conv_norm(1, name=f"lateral{index}")
            for index, shape in enumerate(input_shape)
            if shape[-1] != self.num_filters
        }
        for index, lateral in self.laterals.items():
            lateral.build(input_shape[index])
        self.fusion_weights = self.add_weight(
            shape=(len(self.input_levels),),
            initializer="ones",
            autocast=False,
            dtype="float32",
            name="fusion_weights",
        )
        self.conv.build((None, None, None, self.num_filters))

    def call(self, inputs: Sequence[Tensor], training: bool = False) -> Tensor:
        """Returns [B, H, W, num_filters] of the level."""
        shares = fusion_shares(self.fusion_weights)
        fused = 0.0
        for index, features in enumerate(inputs):
            if index in self.laterals:
                features = self.laterals[index](features, training=training)
            features = _resample(features, self.input_levels[index], self.level)
            fused = fused + weigh(features, shares[index])
        return self.conv(ops.silu(fused), training=training)


class BiFPN(keras.layers.Layer):
    """Turns backbone features into one feature map per level, with `num_filters` channels each.

    Level 6 is level 5 after a 1x1 convolution, batch normalisation and max-pooling; level 7 is
    level 6 after max-pooling. Convolutions have no bias: batch normalisation follows each and
    removes any constant.

    Args:
        min_level: finest level, 2 to 5.
        max_level: coarsest level, above `min_level`.
        num_filters: channels of every level.
        num_repeats: number of cells in sequence.
        make_norm: makes each `BatchNorm`.
        name: name of the layer, the first part of its variables' paths.

    Raises:
        ValueError: levels that do not follow from a backbone of levels 2 to 5, or a single level.
    """

    def __init__(
        self,
        *,
        min_level: int,
        max_level: int,
        num_filters: int,
        num_repeats: int,
        make_norm: MakeNorm,
        name: str = "neck",
    ):
        super().__init__(name=name)
        if not 2 <= min_level <= COARSEST_BACKBONE_LEVEL or not min_level < max_level:
            raise ValueError(
                f"BiFPN has min_level={min_level} and max_level={max_level}; min_level must be 2 "
                f"to 5 and max_level above it, since it passes features between levels."
            )
        self.levels = range(min_level, max_level + 1)
        self.num_filters = num_filters
        self.nodes = cell_nodes(self.levels)
        self.map_levels = (*self.levels, *(node.level for node in self.nodes))
        self.conv_norm = conv_norm = functools.partial(ConvNorm, num_filters, make_norm=make_norm)
        self.cells = [
            [
                Fusion(
                    input_levels=[self.map_levels[i] for i in node.inputs],
                    level=node.level,
                    num_filters=num_filters,
                    conv_norm=conv_norm,
                    name=f"node{index}",
                )
                for index, node in enumerate(self.nodes, start=len(self.levels))
            ]
            for _ in range(num_repeats)
        ]

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Creates the variables under cell0/node5/... for {level: shape of the features}."""
        shape = (None, None, None, self.num_filters)
        shapes = [input_shape.get(level, shape) for level in self.levels]
        # Only the first level beyond the backbone follows one with other channels.
        first = COARSEST_BACKBONE_LEVEL + 1
        self.lateral = None
        if first in self.levels and input_shape[first - 1][-1] != self.num_filters:
            self.lateral = self.conv_norm(1, name=f"lateral{first}")
            self.lateral.build(input_shape[first - 1])
        for index, nodes in enumerate(self.cells):
            map_shapes = [*shapes, *(shape for _ in nodes)]
            with keras.name_scope(f"cell{index}"):
                for node, fusion in zip(self.nodes, nodes, strict=True):
                    fusion.build([map_shapes[i] for i in node.inputs])
            shapes = [shape for _ in self.levels]

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns {level: [B, H / 2**level, W / 2**level, num_filters]} of the pyramid's levels.

        H and W must be multiples of `2**max_level`.
        """
        maps: list[Tensor] = []
        for level in self.levels:
            if level <= COARSEST_BACKBONE_LEVEL:
                maps.append(features[level])
                continue
            before = maps[-1]
            if self.lateral and level == COARSEST_BACKBONE_LEVEL + 1:
                before = self.lateral(before, training=training)
            maps.append(_resample(before, level - 1, level))
        for nodes in self.cells:
            for node, fusion in zip(self.nodes, nodes, strict=True):
                maps.append(fusion([maps[i] for i in node.inputs], training=training))
            newest = dict(zip(self.map_levels, maps, strict=True))
            maps = [newest[level] for level in self.levels]
        return dict(zip(self.levels, maps, strict=True))


def fusion_shares(weights: Tensor) -> Tensor:
    """Returns each input's share, [inputs]: its weight after ReLU, over their sum plus 1e-4.

    Fast normalised fusion, section 3.3 of the paper.
    """
    weights = ops.relu(weights)
    return weights / (ops.sum(weights) + _EPSILON)


def _resample(features: Tensor, level: int, to_level: int) -> Tensor:
    # 3x3 pooling, which overlaps, unlike NAS-FPN's 2x2: as in google/automl.
    if to_level < level:
        return upsample_nearest(features)
    if to_level > level:
        return ops.max_pool(features, 3, 2, padding="same")
    return features
