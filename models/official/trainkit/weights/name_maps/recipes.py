"""Recipes: how to make one of our variables from tensors of a file."""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

BACKBONE_PREFIX = "backbone/"
# Our paths: the unit's, and the part.
PART_PATTERN = (
    rf"({BACKBONE_PREFIX}(?:stem|stage\d+/block\d+)/\w+)/(kernel|depthwise_kernel|bias|norm/\w+)"
)

# Original TensorFlow code makes the projection of a block before the block's convolutions.
_ORDER_IN_BLOCK = ("conv", "shortcut", "conv1", "conv2", "conv3")


class Unit(NamedTuple):
    """Addresses a backbone convolution and its normalisation by (stage, block, name)."""

    stage: int  # from 1; 0 is the stem
    block: int  # as in our path: within the stage in a ResNet, in the network in an EfficientNet
    in_stage: int  # the block's number in its stage, from 0
    name: str  # "conv1", "shortcut", "depthwise"; "conv" in the stem
    order: int  # among the backbone's convolutions as a ResNet of TensorFlow makes them, from 0
    siblings: frozenset[str]  # names of all units of its block

    @property
    def path(self) -> str:
        """Our path, without the name of the variable."""
        place = f"stage{self.stage}/block{self.block}" if self.stage else "stem"
        return f"{BACKBONE_PREFIX}{place}/{self.name}"


def split_path(path: str) -> tuple[str, str] | None:
    """Splits a variable's path into its unit's path and the part, such as "norm/gamma".

    None if the path does not belong to a convolution of a backbone.
    """
    match = re.fullmatch(PART_PATTERN, path)
    return (match[1], match[2]) if match else None


def find_units(paths: Iterable[str]) -> dict[str, Unit]:
    """Finds the units among the paths of a model's variables, keyed by their own paths."""
    blocks: dict[tuple[int, int], set[str]] = {}
    for path in paths:
        split = split_path(path)
        if split:
            place, name = split[0].removeprefix(BACKBONE_PREFIX).rsplit("/", 1)
            stage, block = map(int, re.findall(r"\d+", place)) if place != "stem" else (0, 0)
            blocks.setdefault((stage, block), set()).add(name)
    units, order = {}, 0
    for stage, block in sorted(blocks):
        in_stage = block - min(other for at, other in blocks if at == stage)
        names = blocks[stage, block]
        for name in sorted(names, key=_place_in_block):
            unit = Unit(stage, block, in_stage, name, order, frozenset(names))
            units[unit.path] = unit
            order += 1
    return units


def _place_in_block(name: str) -> tuple[int, str]:
    known = name in _ORDER_IN_BLOCK
    return (_ORDER_IN_BLOCK.index(name) if known else len(_ORDER_IN_BLOCK), name)


class Recipe(NamedTuple):
    """Names of tensors in a file, and the function that makes one of our variables from them.

    Where the file has no values for a part of the variable, such as a class of our own, the
    function returns a masked array, and the masked numbers keep their initial values.
    """

    names: tuple[str, ...]
    convert: Callable[..., np.ndarray]

    def behind(self, prefix: str) -> "Recipe":
        """The recipe for the same names with a prefix."""
        return self._replace(names=tuple(prefix + name for name in self.names))


def unchanged(value: np.ndarray) -> np.ndarray:
    """Returns the tensor as it is: TensorFlow and Keras have our layouts."""
    return value


def as_is(name: str) -> Recipe:
    """The recipe that takes a tensor unchanged."""
    return Recipe((name,), unchanged)


def from_torch_kernel(kernel: np.ndarray) -> np.ndarray:
    """[out, in, height, width] to [height, width, in, out]; grouped ones too."""
    return kernel.transpose(2, 3, 1, 0)


def from_torch_depthwise_kernel(kernel: np.ndarray) -> np.ndarray:
    """[channels, 1, height, width] to [height, width, channels, 1]."""
    return kernel.transpose(2, 3, 0, 1)


def mean_without_bias(moving_mean: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Folds the bias of the preceding convolution, which ours lack, into a norm's mean.

    `(conv + bias - mean)` is `(conv - (mean - bias))`, whatever scale and shift follow.
    """
    return moving_mean - bias


def reversed_colours(kernel: np.ndarray) -> np.ndarray:
    """A first kernel [height, width, 3, out] for blue, green, red to one for red, green, blue."""
    return kernel[:, :, ::-1, :]
