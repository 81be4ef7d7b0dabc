"""Configuration of the data: records, canvas and augmentations."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.config.ranges import Count, NaturalNumber, Positive, Range, Share, check
from tpudet.trainkit.images.augmentation_config import ColorConfig, RandAugmentConfig


@dataclass(frozen=True, kw_only=True)
class MosaicConfig:
    """Mosaic: four images on one canvas around a random centre (YOLOv4, arXiv 2004.10934)."""

    kind: Literal["mosaic"] = "mosaic"
    probability: Share = 0.5

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MixupConfig:
    """Mixup: two blended images with the boxes of both (arXiv 1710.09412, 1902.04103)."""

    kind: Literal["mixup"] = "mixup"
    probability: Share = 0.5
    alpha: Positive = 1.5  # shares are drawn from Beta(alpha, alpha)

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class CopyPasteConfig:
    """Copy-paste: objects with masks pasted from another image (arXiv 2012.07177)."""

    kind: Literal["copy_paste"] = "copy_paste"
    probability: Share = 0.5
    max_objects: Count = 10

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class AutoAugmentConfig:
    """AutoAugment for detection: one sub-policy per image (arXiv 1906.11172)."""

    kind: Literal["autoaugment"] = "autoaugment"
    policy: Literal["v0", "v1", "v2", "v3", "test"] = "v1"


@dataclass(frozen=True, kw_only=True)
class GridMaskConfig:
    """GridMask: a grid of squares is deleted (arXiv 2001.04086)."""

    kind: Literal["grid_mask"] = "grid_mask"
    probability: Share = 0.5
    # Side of the deleted square, as a share of the grid's period: 1 - the paper's r.
    deleted_ratio: Annotated[float, Range("(0, 1)")] = 0.5

    __post_init__ = check


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
class FitConfig:
    """The largest size that fits the canvas; the aspect ratio stays."""

    kind: Literal["fit"] = "fit"


@dataclass(frozen=True, kw_only=True)
class StretchConfig:
    """The size of the canvas, whatever the aspect ratio, as MLPerf's RetinaNet."""

    kind: Literal["stretch"] = "stretch"


@dataclass(frozen=True, kw_only=True)
class ShortSideConfig:
    """The shorter side is given, as far as the longer one and the canvas allow, as torchvision."""

    kind: Literal["short_side"] = "short_side"
    short_side: Count = 800  # pixels
    long_side: Count = 1333  # at most, pixels

    __post_init__ = check


ResizeConfig = FitConfig | StretchConfig | ShortSideConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The TFRecords, and the preprocessing and augmentation of their images."""

    directory: str = ""  # holds classes.csv and <split>_<part>-?????-of-?????.tfrecord
    train_split: str = "train"
    eval_split: str = "val"
    canvas_size: tuple[Count, Count] = (640, 640)  # height, width in pixels
    max_instances: Count = 100  # boxes per image; of more, a random choice is drawn every epoch
    # Of the training images, the first of each file: for a quick try.
    fraction: Annotated[float, Range("(0, 1]")] = 1.0
    close_mosaic_steps: NaturalNumber = 0  # of the run's last ones, without mosaic and mixup
    horizontal_flip: bool = True
    vertical_flip: bool = False
    quarter_turns: bool = False  # by 0, 90, 180 or 270 degrees
    resize: ResizeConfig = field(default_factory=FitConfig)  # also of evaluation and export
    # Relative to the size that `resize` gives; (0.1, 2.0) is large-scale jitter.
    scale_range: tuple[float, float] = (1.0, 1.0)
    augmentations: tuple[AugmentationConfig, ...] = ()  # applied in this order

    def idle_keys(self) -> list[IdleKeys]:
        """Returns the keys that change nothing, whether they are set or not."""
        mixes = any(isinstance(one, MosaicConfig | MixupConfig) for one in self.augmentations)
        keys = () if mixes else ("close_mosaic_steps",)
        return [IdleKeys("data", self, DataConfig(), keys, "there is no mosaic and no mixup")]

    @property
    def moving_augmentations(self) -> tuple[str, ...]:
        """The keys that put pixels of a training image, or of another, elsewhere on the canvas."""
        kinds = (augmentation.kind for augmentation in self.augmentations)
        mixing = tuple(kind for kind in kinds if kind in ("mosaic", "mixup", "copy_paste"))
        return (*mixing, *(["quarter_turns"] if self.quarter_turns else []))

    def __post_init__(self) -> None:
        low, high = self.scale_range
        text = f"0.1 <= low <= high <= 2.0 for scale_range, got [{low}, {high}]"
        check(
            self,
            (0.1 <= low <= high <= 2.0, text),
        )
