"""The augmentations of an experiment file as what the input pipeline applies."""

from functools import partial

from tpudet.detection.data.augmentations.autoaugment import apply_autoaugment
from tpudet.detection.data.augmentations.mixing import copy_paste, mixup, mosaic
from tpudet.detection.data.augmentations.pixels import apply_color, apply_grid_mask
from tpudet.detection.data.augmentations.rand_augment import apply_rand_augment
from tpudet.detection.data.config import (
    AugmentationConfig,
    AutoAugmentConfig,
    ColorConfig,
    CopyPasteConfig,
    DataConfig,
    GridMaskConfig,
    MixupConfig,
    MosaicConfig,
    RandAugmentConfig,
)
from tpudet.detection.data.sample import Augmentation, MixingAugmentation, PictureAugmentation


def build_augmentations(data: DataConfig) -> tuple[Augmentation, ...]:
    """Returns `data.augmentations` in their order, for `train_dataset`."""
    return tuple(_build(config, data.canvas_size) for config in data.augmentations)


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
            return MixingAugmentation(
                apply, num_partners=1, probability=probability, needs_masks=True
            )
        case AutoAugmentConfig(policy=policy):
            return PictureAugmentation(partial(apply_autoaugment, policy=policy))
        case RandAugmentConfig(num_ops=num_ops, magnitude=magnitude):
            apply = partial(apply_rand_augment, num_ops=num_ops, magnitude=magnitude)
            return PictureAugmentation(apply)
        case GridMaskConfig(probability=probability, deleted_ratio=ratio):
            apply = partial(apply_grid_mask, probability=probability, deleted_ratio=ratio)
            return PictureAugmentation(apply)
        case ColorConfig():
            names = ("brightness", "contrast", "saturation", "hue")
            amounts = {name: getattr(config, name) for name in names}
            return PictureAugmentation(partial(apply_color, **amounts))
