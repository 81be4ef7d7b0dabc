"""The settings that give a classifier's weights their meaning."""

import dataclasses
from typing import Any

import pytest

from tpudet.classification.config import (
    FREE_MODEL_KEYS,
    EvaluationConfig,
    EvaluationScheduleConfig,
    ExperimentConfig,
)
from tpudet.classification.data.config import DataConfig
from tpudet.classification.modeling.config import (
    ClassifierConfig,
    SigmoidLossConfig,
    SoftmaxLossConfig,
)
from tpudet.trainkit.backbones.config import EfficientNetConfig, ResNetConfig
from tpudet.trainkit.weights.settings import changed_settings, values_by_key


def test_every_free_key_is_a_key_of_a_model() -> None:
    """A key that is renamed would count again, unnoticed."""
    models = [
        ClassifierConfig(backbone=backbone, loss=loss)
        for backbone in (ResNetConfig(), EfficientNetConfig())
        for loss in (SoftmaxLossConfig(), SigmoidLossConfig())
    ]
    known = {key for model in models for key, _ in values_by_key(dataclasses.asdict(model))}
    assert set(FREE_MODEL_KEYS) <= known


BRAIN, BLOOD, SOFT = (40.0, 80.0), (80.0, 200.0), (40.0, 480.0)


@pytest.mark.parametrize(
    ("model", "data", "expected"),
    [
        ({"loss": SigmoidLossConfig()}, {}, ["model.loss.kind: softmax -> sigmoid"]),
        ({"top_filters": 0}, {}, ["model.top_filters: 1280 -> 0"]),
        (
            {},
            {"windows": (BRAIN, SOFT, BLOOD)},
            [
                "data.windows: [[40.0, 80.0], [80.0, 200.0], [40.0, 480.0]] -> "
                "[[40.0, 80.0], [40.0, 480.0], [80.0, 200.0]]"
            ],
        ),
        ({"dropout": 0.5, "loss": SoftmaxLossConfig(label_smoothing=0.1)}, {}, []),
        ({}, {"image_size": (448, 448), "center_crop": 1.0, "horizontal_flip": False}, []),
    ],
)
def test_what_counts(model: dict[str, Any], data: dict[str, Any], expected: list[str]) -> None:
    before = ExperimentConfig(
        task="classification",
        model=ClassifierConfig(top_filters=1280),
        data=DataConfig(windows=(BRAIN, BLOOD, SOFT)),
    )
    now = dataclasses.replace(
        before,
        model=dataclasses.replace(before.model, **model),
        data=dataclasses.replace(before.data, **data),
    )
    assert changed_settings(before.weights_settings, now.weights_settings) == expected


@pytest.mark.parametrize(
    ("max_images", "class_weights", "expected"),
    [
        (None, (), "val, all images, all classes alike"),
        (500, (2.0, 1.0), "val, at most 500 images, classes weighted 2:1"),
    ],
)
def test_numbers_of_other_images_or_class_weights_are_not_compared(
    max_images: int | None, class_weights: tuple[float, ...], expected: str
) -> None:
    """`negative_loss` is weighted as the loss is: other weights, another number."""
    config = ExperimentConfig(
        task="classification",
        model=ClassifierConfig(loss=SigmoidLossConfig(class_weights=class_weights)),
        data=DataConfig(eval_split="val"),
        evaluation=EvaluationConfig(schedule=EvaluationScheduleConfig(max_images=max_images)),
    )
    assert config.measured == expected
