"""NAS-FPN (Ghiasi et al., arXiv 1904.07392): a searched cell, repeated."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import keras

from tpudet.detection.modeling.fpn import upsample_nearest
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL
from tpudet.trainkit.backbones.layers import ConvNorm
from tpudet.trainkit.backbones.low_precision import in_full_precision, weigh
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class CellNode(NamedTuple):
    """A node of the cell: two feature maps are merged into one of `level`.

    Inputs are numbers of maps: 0 to 4 are the inputs of the cell, levels 3 to 7, and 5 is the first
    node. The second input of an attention is the coarser one.
    """

    level: int
    merge: Literal["sum", "attention"]
    inputs: tuple[int, int]
    added: tuple[int, ...] = ()  # maps of the same level that no earlier node has used


LEVELS = range(3, 8)

# Figure 6 of the paper. The last node of a level is the cell's output there.
CELL = (
    CellNode(4, "attention", (1, 3)),
    CellNode(4, "sum", (1, 5)),
    CellNode(3, "sum", (0, 6)),
    CellNode(4, "sum", (6, 7)),
    CellNode(5, "attention", (7, 8), added=(2,)),
    CellNode(7, "attention", (6, 9), added=(4,)),
    CellNode(6, "attention", (9, 10)),
)
_NODE_LEVELS = (*LEVELS, *(node.level for node in CELL))
_OUTPUTS = {level: index for index, level in enumerate(_NODE_LEVELS)}


class Cell(keras.layers.Layer):
    """Maps the features of levels 3 to 7 to features of the same shapes.

    Each node applies ReLU, a 3x3 convolution and batch normalisation to the merged maps.

    Args:
        conv_norm: makes a node's `ConvNorm` from its name.
        drop_block: makes the layer after a node's normalisation from a seed and a name. It drops
            nothing while the cell is frozen.
        seed: seed of the first node's `drop_block`; the others count up from it.
        name: name of the layer.
    """

    def __init__(
        self,
        *,
        conv_norm: Callable[..., ConvNorm],
        drop_block: Callable[..., keras.layers.Layer] | None,
        seed: int,
        name: str,
    ):
        super().__init__(name=name)
        indices = range(len(LEVELS), len(_NODE_LEVELS))
        self.convs = [conv_norm(name=f"node{index}") for index in indices]
        self.drop_blocks = [
            drop_block(seed=seed + number, name=f"drop_block{index}")
            for number, index in enumerate(indices)
            if drop_block
        ]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for feature maps [B, H, W, num_filters] of any level."""
        for layer in (*self.convs, *self.drop_blocks):
            layer.build(input_shape)

    def call(self, features: Sequence[Tensor], training: bool = False) -> list[Tensor]:
        """Maps the features of levels 3 to 7 to features of the same shapes."""
        maps, drops = list(features), training and bool(self.trainable_variables)
        for number, node in enumerate(CELL):
            fine, coarse = (
                resample(maps[index], _NODE_LEVELS[index], node.level) for index in node.inputs
            )
            merged = attend(fine, coarse) if node.merge == "attention" else fine + coarse
            for index in node.added:
                merged = merged + maps[index]
            merged = self.convs[number](ops.relu(merged), training=training)
            if self.drop_blocks:
                merged = self.drop_blocks[number](merged, training=drops)
            maps.append(merged)
        return [maps[_OUTPUTS[level]] for level in LEVELS]


class NASFPN(keras.layers.Layer):
    """Turns backbone features into maps of levels 3 to 7 with `num_filters` channels each.

    Levels beyond the backbone are max-pooled from the level before. Backbone levels with another
    number of channels first pass a 1x1 convolution and batch normalisation.

    Args:
        min_level: finest level, 3.
        max_level: coarsest level, 7.
        num_filters: channels of every level.
        num_repeats: number of cells in sequence.
        separable: whether the cells' 3x3 convolutions are depthwise and then 1x1.
        drop_block: makes a `DropBlock` from a seed and a name, one after each node of each cell.
        seed: seed of the first `DropBlock`; the others count up from it.
        make_norm: makes each `BatchNorm`.
        name: name of the layer, the first part of its variables' paths.

    Raises:
        ValueError: levels other than 3 to 7.
    """

    def __init__(
        self,
        *,
        min_level: int,
        max_level: int,
        num_filters: int,
        num_repeats: int,
        separable: bool,
        drop_block: Callable[..., keras.layers.Layer] | None,
        seed: int,
        make_norm: MakeNorm,
        name: str = "neck",
    ):
        super().__init__(name=name)
        if (min_level, max_level) != (LEVELS[0], LEVELS[-1]):
            raise ValueError(
                f"NAS-FPN has min_level=3 and max_level=7, got {min_level} and {max_level}."
            )
        self.num_filters = num_filters
        self.conv_norm = conv_norm = functools.partial(ConvNorm, num_filters, make_norm=make_norm)
        self.cells = [
            Cell(
                conv_norm=functools.partial(
                    conv_norm, 3, kind="separable" if separable else "full"
                ),
                drop_block=drop_block,
                seed=seed + index * len(CELL),
                name=f"cell{index}",
            )
            for index in range(num_repeats)
        ]

    def build(self, input_shape: Mapping[int, tuple[int | None, ...]]) -> None:
        """Creates the variables for {level: shape of the backbone's features}."""
        self.laterals = {
            level: self.conv_norm(1, name=f"lateral{level}")
            for level in LEVELS
            if level <= COARSEST_BACKBONE_LEVEL and input_shape[level][-1] != self.num_filters
        }
        for level, lateral in self.laterals.items():
            lateral.build(input_shape[level])
        for cell in self.cells:
            cell.build((None, None, None, self.num_filters))

    def call(self, features: Mapping[int, Tensor], training: bool = False) -> dict[int, Tensor]:
        """Returns {level: [B, H / 2**level, W / 2**level, num_filters]} of the levels 3 to 7."""
        maps: list[Tensor] = []
        for level in LEVELS:
            if level > COARSEST_BACKBONE_LEVEL:
                maps.append(resample(maps[-1], level - 1, level))
            elif level in self.laterals:
                maps.append(self.laterals[level](features[level], training=training))
            else:
                maps.append(features[level])
        for cell in self.cells:
            maps = cell(maps, training=training)
        return dict(zip(LEVELS, maps, strict=True))


def attend(fine: Tensor, coarse: Tensor) -> Tensor:
    """Returns `coarse + fine * sigmoid(largest value of each channel of coarse)`.

    The paper's global pooling with attention; both maps are [B, H, W, C].
    """
    # Not ops.max: its gradient on JAX divides by how many numbers equal the largest, and XLA may
    # compute them twice to different bits, find none equal and give NaN (seen on a CPU).
    largest = ops.max_pool(coarse, coarse.shape[1:3], 1, padding="valid")
    return coarse + weigh(fine, ops.sigmoid(in_full_precision(largest)))


def resample(features: Tensor, level: int, to_level: int) -> Tensor:
    """Resamples [B, H, W, C] to another level: nearest pixel upwards, max-pooling downwards."""
    if to_level < level:
        return upsample_nearest(features, 2 ** (level - to_level))
    if to_level > level:
        stride = 2 ** (to_level - level)
        return ops.max_pool(features, stride, stride, padding="same")
    return features
