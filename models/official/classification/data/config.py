"""Configuration of the data: records, crops and augmentations."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tpudet.trainkit.config.ranges import Count, Positive, Range, Share, check
from tpudet.trainkit.images.augmentation_config import ColorConfig, RandAugmentConfig


@dataclass(frozen=True, kw_only=True)
class RandomCropConfig:
    """Inception's crop: a random part of random shape (Szegedy et al., arXiv 1409.4842)."""

    area_range: tuple[Share, Share] = (0.08, 1.0)  # of the image
    aspect_range: tuple[Positive, Positive] = (0.75, 4 / 3)  # width / height of the part

    def __post_init__(self) -> None:
        pairs = {"area_range": self.area_range, "aspect_range": self.aspect_range}
        check(
            self,
            *(
                (0 < low <= high, f"0 < low <= high for {name}, got [{low}, {high}]")
                for name, (low, high) in pairs.items()
            ),
        )


@dataclass(frozen=True, kw_only=True)
class AffineConfig:
    """The image turned, shifted and scaled at random; black where nothing is left."""

    kind: Literal["affine"] = "affine"
    rotation: Annotated[float, Range("[0, 180]")] = 15.0  # degrees, either way
    shift: Share = 0.0625  # of height and width, either way
    scale: Annotated[float, Range("[0, 1)")] = 0.1  # by a factor of 1 - x .. 1 + x

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class MixupConfig:
    """Mixup: two blended images with the labels of both (arXiv 1710.09412)."""

    kind: Literal["mixup"] = "mixup"
    probability: Share = 0.5
    alpha: Positive = 0.2  # shares are drawn from Beta(alpha, alpha)

    __post_init__ = check


@dataclass(frozen=True, kw_only=True)
class CutmixConfig:
    """CutMix: a rectangle of another image, with a share of its labels (arXiv 1905.04899)."""

    kind: Literal["cutmix"] = "cutmix"
    probability: Share = 0.5
    alpha: Positive = 1.0  # the rectangle's share of the area is drawn from Beta(alpha, alpha)

    __post_init__ = check


AugmentationConfig = ColorConfig | AffineConfig | RandAugmentConfig | MixupConfig | CutmixConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The TFRecords, and the preprocessing and augmentation of their images."""

    directory: str = ""  # holds the TFRecords and, unless `classes` names another, classes.csv
    classes: str = ""  # class list, `identifier,name` per row; empty: classes.csv of `directory`
    train_split: str = "train"
    eval_split: str = "val"
    image_size: tuple[Count, Count] = (224, 224)  # height, width in pixels
    # Of the whole image, before the crop: what turns out of the image is lost, and black follows.
    random_affine: AffineConfig | None = None
    random_crop: RandomCropConfig | None = field(default_factory=RandomCropConfig)
    # Side of the central crop, as a share of the largest that fits: evaluation, and training if
    # random_crop is null.
    center_crop: Annotated[float, Range("(0, 1]")] = 0.875
    horizontal_flip: bool = True
    # Of CT slices: centre and width of the windows that become red, green and blue, Hounsfield
    # units, such as brain [40, 80], blood [80, 200] and soft tissue [40, 480].
    windows: tuple[tuple[float, float], ...] = ()
    augmentations: tuple[AugmentationConfig, ...] = ()  # applied in this order
    cache: str = (
        ""  # folder that `tpudet cache_samples` wrote: training reads decoded samples there
    )
    pipeline: Literal["optimized", "basic"] = "optimized"  # basic: one image at a time, to compare

    def __post_init__(self) -> None:
        wide = all(width > 0 for _, width in self.windows)
        check(
            self,
            (len(self.windows) in (0, 3), f"windows must be three, got {len(self.windows)}"),
            (wide, f"windows must have a width above 0, got {[list(w) for w in self.windows]}"),
        )
