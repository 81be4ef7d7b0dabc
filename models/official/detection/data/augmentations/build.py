"""Builds the augmentations of an experiment's `data.augmentations`."""

from collections.abc import Callable
from functools import partial

from tpudet.detection.data.augmentations.autoaugment import apply_autoaugment
from tpudet.detection.data.augmentations.mixing import copy_paste, mixup, mosaic
from tpudet.detection.data.augmentations.pixels import apply_grid_mask
from tpudet.detection.data.augmentations.rand_augment import apply_rand_augment
from tpudet.detection.data.config import (
    AugmentationConfig,
    AutoAugmentConfig,
    CopyPasteConfig,
    DataConfig,
    GridMaskConfig,
    MixupConfig,
    MosaicConfig,
)
from tpudet.detection.data.sample import apply_to_image
from tpudet.trainkit.images.augmentation_config import ColorConfig, RandAugmentConfig
from tpudet.trainkit.images.mixed_stream import (
    Augmentation,
    ImageAugmentation,
    MixingAugmentation,
)
from tpudet.trainkit.images.pixel_operations import jitter_colors


def build_augmentations(data: DataConfig) -> tuple[Augmentation, ...]:
    """Returns `data.augmentations`, in their order, as functions of a `Sample`."""
    return tuple(_build(config, data.canvas_size) for config in data.augmentations)


def needs_masks(data: DataConfig) -> bool:
    """Returns whether any of `data.augmentations` needs masks."""
    return any(isinstance(config, CopyPasteConfig) for config in data.augmentations)


def on_image(change: Callable) -> ImageAugmentation:
    """Returns the augmentation that applies `change` to each image, see `apply_to_image`."""
    return ImageAugmentation(partial(apply_to_image, change=change))


def _build(config: AugmentationConfig, canvas_size: tuple[int, int]) -> Augmentation:
    match config:
        case MosaicConfig(probability=probability):
            apply = partial(mosaic, canvas_size=canvas_size)
            return MixingAugmentation(apply, num_partners=3, probability=probability)
        case MixupConfig(probability=probability, alpha=alpha):
            apply = partial(mixup, alpha=alpha)
            return MixingAugmentation(apply, num_partners=1, probability=probability)
        case CopyPasteConfig(probability=probability, max_objects=max_objects):
            apply = partial(copy_paste, max_objects=max_objects)
            return MixingAugmentation(apply, num_partners=1, probability=probability)
        case AutoAugmentConfig(policy=policy):
            return on_image(partial(apply_autoaugment, policy=policy))
        case RandAugmentConfig(num_ops=num_ops, magnitude=magnitude):
            apply = partial(apply_rand_augment, num_ops=num_ops, magnitude=magnitude)
            return on_image(apply)
        case GridMaskConfig(probability=probability, deleted_ratio=ratio):
            apply = partial(apply_grid_mask, probability=probability, deleted_ratio=ratio)
            return on_image(apply)
        case ColorConfig():
            names = ("brightness", "contrast", "saturation", "hue")
            amounts = {name: getattr(config, name) for name in names}
            jitter = partial(jitter_colors, **amounts)
            return on_image(lambda one, seed: one._replace(image=jitter(one.image, seed)))
