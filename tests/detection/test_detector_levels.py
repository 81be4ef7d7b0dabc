"""Which levels a detector may have, and that each variable of such a detector learns."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.build_detector import build_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree

CANVAS = (64, 128)


def config_of(text: str) -> ExperimentConfig:
    return decode(ExperimentConfig, parse_tree(f"model: {{{text}}}", "experiment.yaml"))


def object_in_noise() -> Batch:
    return Batch(
        images=np.random.default_rng(0).integers(0, 256, (1, *CANVAS, 3)).astype(np.uint8),
        boxes=np.array([[[10, 20, 70, 90]]], np.float32),
        classes=np.array([[3]], np.int32),
        is_crowd=np.zeros((1, 1), bool),
        records=np.arange(1),
        original_sizes=np.array([CANVAS], np.float32),
        scales=np.ones((1, 2), np.float32),
        offsets=np.zeros((1, 2), np.float32),
    )


RESNET, EFFICIENTNET = "kind: resnet, depth: 18", "kind: efficientnet, variant: lite0"


@pytest.mark.parametrize(
    ("backbone", "neck", "low", "high"),
    [
        *((RESNET, "identity", level, level) for level in (2, 3, 4, 5)),
        *((RESNET, "fpn", low, high) for low, high in ((2, 2), (3, 4), (5, 6))),
        *((RESNET, "bifpn", low, high) for low, high in ((2, 3), (4, 5), (5, 6))),
        (EFFICIENTNET, "fpn", 3, 4),
        (EFFICIENTNET, "identity", 2, 2),
    ],
)
def test_every_variable_has_a_gradient_at_any_levels(
    backbone: str, neck: str, low: int, high: int
) -> None:
    """Stages that the neck does not use would stop the first step."""
    text = f"""backbone: {{{backbone}}}, neck: {{kind: {neck}}}, head: {{num_filters: 8,
    num_convs: 0}}, min_level: {low}, max_level: {high}, matching: {{kind: atss}}"""
    task = build_task(config_of(text), num_classes=3, canvas_size=CANVAS)
    variables = task.model.trainable_variables

    def losses_and_gradients(batch: Batch) -> Any:
        with tf.GradientTape() as tape:
            loss = task.losses(batch)["loss"]
        return loss, tape.gradient(loss, [variable.value for variable in variables])

    loss, gradients = losses_and_gradients(object_in_noise())
    assert np.isfinite(loss)
    assert [v.path for v, g in zip(variables, gradients, strict=True) if g is None] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_level: 6", r"min_level must be in \[2, 5\], got 6"),
        ("min_level: 1", r"min_level must be in \[2, 5\], got 1"),
        ("max_level: 8", r"max_level must be in \[2, 7\], got 8"),
        ("min_level: 5, max_level: 4", "min_level must be at most max_level, got 5 and 4"),
        ("neck: {kind: bifpn}, min_level: 4, max_level: 4", "bifpn has two levels or more"),
        ("neck: {kind: identity}", "identity has one level, got 3 to 7"),
        ("neck: {kind: nas_fpn}, max_level: 6", "nas_fpn has levels 3 to 7, got 3 to 6"),
    ],
)
def test_levels_that_no_detector_has_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(text)
