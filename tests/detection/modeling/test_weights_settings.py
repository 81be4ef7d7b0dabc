"""The settings that give a detector's weights their meaning, key by key."""

import dataclasses
from typing import Any

import pytest

from tpudet.detection.modeling.config import (
    AnchorConfig,
    ATSSConfig,
    HeadConfig,
    OverlapLossConfig,
    RetinaNetConfig,
    VarifocalLossConfig,
)
from tpudet.detection.modeling.mask_rcnn_config import (
    BoxHeadConfig,
    MaskRCNNConfig,
    RoIAlignConfig,
    RPNConfig,
)
from tpudet.detection.modeling.pyramid_config import FPNConfig, NASFPNConfig
from tpudet.detection.modeling.weights_settings import FREE_KEYS, weights_settings
from tpudet.trainkit.backbones.config import (
    BatchNormConfig,
    DropBlockConfig,
    EfficientNetConfig,
    ResNetConfig,
)
from tpudet.trainkit.weights.settings import changed_settings


def sections(config: Any, start: str = "") -> set[str]:
    """The keys of a config and its sections."""
    found = set()
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found.add(f"{start}{field.name}")
        if dataclasses.is_dataclass(value):
            found |= sections(value, f"{start}{field.name}.")
    return found


def test_every_free_key_is_a_key_of_a_model() -> None:
    """A key that is renamed would count again, unnoticed."""
    detectors = [
        RetinaNetConfig(neck=NASFPNConfig()),
        RetinaNetConfig(backbone=EfficientNetConfig()),
        MaskRCNNConfig(),
    ]
    known = set().union(*(sections(model) for model in detectors))
    assert set(FREE_KEYS) <= known


def changes(model: Any, **values: Any) -> list[str]:
    changed = dataclasses.replace(model, **values)
    return changed_settings(weights_settings(model), weights_settings(changed))


NORM = BatchNormConfig(momentum=0.5, epsilon=1e-5, synchronized=False)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"normalization": "caffe"}, "normalization: imagenet -> caffe"),
        ({"padding": "mean"}, "padding: black -> mean"),
        ({"anchors": AnchorConfig(size=8.0)}, "anchors.size: 4.0 -> 8.0"),
        ({"anchors": AnchorConfig(layout="corner")}, "anchors.layout: centered -> corner"),
        ({"head": HeadConfig(activation="silu")}, "head.activation: relu -> silu"),
        ({"batch_norm": NORM}, "batch_norm.epsilon: 0.0001 -> 1e-05"),
        ({"backbone": ResNetConfig(style="keras")}, "backbone.style: torch -> keras"),
        ({"neck": FPNConfig(coarse_relu=False)}, "neck.coarse_relu: true -> false"),
        ({"backbone": ResNetConfig(style="torch", batch_norm=NORM)}, ""),  # its epsilon was auto
        ({"backbone": ResNetConfig(style="torch", drop_block=DropBlockConfig())}, ""),
        ({"backbone": ResNetConfig(style="torch", gradient_checkpointing=True)}, ""),
        ({"matching": ATSSConfig(), "loss_normalization": "image"}, ""),
        ({"class_loss": VarifocalLossConfig(), "box_loss": OverlapLossConfig(kind="ciou")}, ""),
    ],
)
def test_one_stage(values: dict[str, Any], expected: str) -> None:
    model = RetinaNetConfig(
        normalization="imagenet",
        backbone=ResNetConfig(style="torch"),
        batch_norm=BatchNormConfig(epsilon=1e-4),
    )
    assert changes(model, **values) == ([f"model.{expected}"] if expected else [])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"roi_align": RoIAlignConfig(aligned=False)}, "roi_align.aligned: true -> false"),
        ({"rpn": RPNConfig(clip_to="image")}, "rpn.clip_to: canvas -> image"),
        ({"rpn": RPNConfig(beta=0.0, max_proposals=300, nms_iou_threshold=0.5)}, ""),
        ({"box_head": BoxHeadConfig(iou_threshold=0.6, regions_per_image=128)}, ""),
        ({"neck": FPNConfig(coarse_relu=False)}, ""),  # idle: level 6 is every second pixel of 5
    ],
)
def test_two_stages(values: dict[str, Any], expected: str) -> None:
    assert changes(MaskRCNNConfig(), **values) == ([f"model.{expected}"] if expected else [])
