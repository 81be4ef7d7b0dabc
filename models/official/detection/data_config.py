"""The data's part of the experiment file: where records lie and what training does to pictures."""

from dataclasses import dataclass
from typing import Literal

from trainkit.config import require


def _check_probability(value: float) -> None:
    require((0.0 <= value <= 1.0, f"probability must be in [0, 1], got {value}"))


@dataclass(frozen=True, kw_only=True)
class MosaicConfig:
    """Four pictures on one canvas, around a random centre (YOLOv4, arXiv 2004.10934)."""

    kind: Literal["mosaic"] = "mosaic"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self.probability)


@dataclass(frozen=True, kw_only=True)
class MixupConfig:
    """Two pictures blended, with the boxes of both (arXiv 1710.09412, 1902.04103)."""

    kind: Literal["mixup"] = "mixup"
    probability: float = 0.5
    alpha: float = 1.5  # shares are drawn from Beta(alpha, alpha)

    def __post_init__(self) -> None:
        _check_probability(self.probability)
        require((self.alpha > 0, f"alpha must be above 0, got {self.alpha}"))


@dataclass(frozen=True, kw_only=True)
class CopyPasteConfig:
    """Objects with masks pasted from another picture (arXiv 2012.07177)."""

    kind: Literal["copy_paste"] = "copy_paste"
    probability: float = 0.5
    max_objects: int = 10

    def __post_init__(self) -> None:
        _check_probability(self.probability)
        require((self.max_objects > 0, f"max_objects must be above 0, got {self.max_objects}"))


@dataclass(frozen=True, kw_only=True)
class AutoAugmentConfig:
    """One sub-policy of AutoAugment for detection a picture (arXiv 1906.11172)."""

    kind: Literal["autoaugment"] = "autoaugment"
    policy: Literal["v0", "v1", "v2", "v3", "test"] = "v1"


@dataclass(frozen=True, kw_only=True)
class RandAugmentConfig:
    """Operations drawn at one strength (arXiv 1909.13719)."""

    kind: Literal["rand_augment"] = "rand_augment"
    num_ops: int = 2
    magnitude: float = 5.0  # 0..10

    def __post_init__(self) -> None:
        require(
            (self.num_ops > 0, f"num_ops must be above 0, got {self.num_ops}"),
            (0 <= self.magnitude <= 10, f"magnitude must be in [0, 10], got {self.magnitude}"),
        )


@dataclass(frozen=True, kw_only=True)
class GridMaskConfig:
    """A grid of squares is deleted (arXiv 2001.04086)."""

    kind: Literal["grid_mask"] = "grid_mask"
    probability: float = 0.5
    ratio: float = 0.5  # side of the deleted square, as a share of the grid's period

    def __post_init__(self) -> None:
        _check_probability(self.probability)
        require((0 < self.ratio < 1, f"ratio must be between 0 and 1, got {self.ratio}"))


@dataclass(frozen=True, kw_only=True)
class ColorConfig:
    """Brightness, contrast and saturation by factors in 1 - x .. 1 + x; hue by -x .. x turns."""

    kind: Literal["color"] = "color"
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            require((0 <= value <= 1, f"{name} must be in [0, 1], got {value}"))
        require((0 <= self.hue <= 0.5, f"hue must be in [0, 0.5], got {self.hue}"))


AugmentationConfig = (
    MosaicConfig
    | MixupConfig
    | CopyPasteConfig
    | AutoAugmentConfig
    | RandAugmentConfig
    | GridMaskConfig
    | ColorConfig
)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the TFRecords lie and how an image reaches the canvas."""

    directory: str = ""  # holds classes.csv and <split>_<part>-?????-of-?????.tfrecord
    train_split: str = "train"
    eval_split: str = "val"
    canvas_size: tuple[int, int] = (640, 640)  # height, width in pixels
    max_instances: int = 100  # boxes an image; the rest is left out and counted
    horizontal_flip: bool = True
    # Of the size that just fits the canvas; (0.1, 2.0) is large-scale jitter.
    scale_range: tuple[float, float] = (1.0, 1.0)
    augmentations: tuple[AugmentationConfig, ...] = ()  # applied in this order

    def __post_init__(self) -> None:
        low, high = self.scale_range
        text = f"0.1 <= low <= high <= 2.0 for scale_range, got [{low}, {high}]"
        require(
            (min(self.canvas_size) > 0, f"canvas_size must be above 0, got {self.canvas_size}"),
            (self.max_instances > 0, f"max_instances must be above 0, got {self.max_instances}"),
            (0.1 <= low <= high <= 2.0, text),
        )
