"""Mistakes in the data's part of an experiment file are told all at once."""

import pytest

from tpudet.detection.data.config import (
    CopyPasteConfig,
    DataConfig,
    GridMaskConfig,
    MixupConfig,
    MosaicConfig,
)
from tpudet.trainkit.images.augmentation_config import ColorConfig, RandAugmentConfig


@pytest.mark.parametrize(
    ("config", "wrong", "words"),
    [
        (MosaicConfig, {"probability": 1.1}, ["probability must be in [0, 1], got 1.1"]),
        (
            MixupConfig,
            {"probability": -0.1, "alpha": 0.0},
            ["probability must be in [0, 1], got -0.1", "alpha must be above 0, got 0.0"],
        ),
        (CopyPasteConfig, {"max_objects": 0}, ["max_objects must be above 0, got 0"]),
        (
            RandAugmentConfig,
            {"num_ops": 0, "magnitude": 11.0},
            ["num_ops must be above 0, got 0", "magnitude must be in [0, 10], got 11.0"],
        ),
        (
            GridMaskConfig,
            {"probability": 2.0, "deleted_ratio": 1.0},
            ["probability must be in [0, 1], got 2.0", "deleted_ratio must be in (0, 1), got 1.0"],
        ),
        (
            ColorConfig,
            {"brightness": -0.1, "contrast": 1.5, "saturation": float("nan"), "hue": 0.6},
            [
                "brightness must be",
                "contrast must be",
                "saturation must be",
                "hue must be in [0, 0",
            ],
        ),
        (
            DataConfig,
            {"scale_range": (1.2, 0.8), "max_instances": 0},
            ["0.1 <= low <= high <= 2.0 for scale_range, got [1.2, 0.8]", "max_instances must be"],
        ),
        (DataConfig, {"scale_range": (0.05, 1.0)}, ["got [0.05, 1.0]"]),
        (DataConfig, {"scale_range": (1.0, 2.5)}, ["got [1.0, 2.5]"]),
    ],
)
def test_every_mistake_is_told(config, wrong, words) -> None:
    config()
    with pytest.raises(ValueError, match="got") as caught:
        config(**wrong)
    assert [text for text in words if text not in str(caught.value)] == []
