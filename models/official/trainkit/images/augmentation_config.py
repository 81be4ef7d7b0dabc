"""Configuration of the augmentations that all tasks share."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tpudet.trainkit.config.ranges import Count, Range, Share, check


@dataclass(frozen=True, kw_only=True)
class ColorConfig:
    """Brightness, contrast and saturation times 1 - x .. 1 + x; hue rotated by -x .. x turns."""

    kind: Literal["color"] = "color"
    brightness: Share = 0.2
    contrast: Share = 0.2
    saturation: Share = 0.2
    hue: Annotated[float, Range("[0, 0.5]")] = 0.0

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class RandAugmentConfig:
    """RandAugment: random operations of one strength (arXiv 1909.13719)."""

    kind: Literal["rand_augment"] = "rand_augment"
    num_ops: Count = 2
    magnitude: Annotated[float, Range("[0, 10]")] = 5.0

    __post_init__ = check
