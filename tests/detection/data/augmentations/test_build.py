"""Every kind of the experiment file becomes an augmentation that the pipeline applies."""

from typing import get_args

import pytest

from tpudet.detection.data.augmentations.build import build_augmentations, needs_masks
from tpudet.detection.data.config import (
    AugmentationConfig,
    CopyPasteConfig,
    DataConfig,
    MixupConfig,
    MosaicConfig,
)
from tpudet.trainkit.images.mixed_stream import ImageAugmentation, MixingAugmentation

MIXING = (MosaicConfig, MixupConfig, CopyPasteConfig)


@pytest.mark.parametrize("kind", get_args(AugmentationConfig))
def test_every_kind_is_built(kind) -> None:
    (built,) = build_augmentations(DataConfig(augmentations=(kind(),)))
    assert isinstance(built, MixingAugmentation if kind in MIXING else ImageAugmentation)


def test_order_and_numbers_are_those_of_the_file() -> None:
    configs = (
        CopyPasteConfig(probability=0.25),
        MosaicConfig(probability=0.75),
        MixupConfig(probability=0.125),
    )
    built = build_augmentations(DataConfig(augmentations=configs))
    numbers = [
        (step.num_partners, step.probability)
        for step in built
        if isinstance(step, MixingAugmentation)
    ]
    assert numbers == [(1, 0.25), (3, 0.75), (1, 0.125)]


@pytest.mark.parametrize("kind", get_args(AugmentationConfig))
def test_only_copy_paste_needs_masks(kind) -> None:
    assert needs_masks(DataConfig(augmentations=(kind(),))) == (kind is CopyPasteConfig)
