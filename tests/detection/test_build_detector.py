"""From the text of an experiment file to the parts of the detector: every kind and every number.

Each case names every key of one member of one union, none with its default. So a new kind, or a new
key of an old one, fails here until it has a case and arrives where it should.
"""

import dataclasses
import functools
import typing
from typing import Any

import keras
import numpy as np
import pytest

from tpudet.detection.build_detector import build_task
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.config import (
    ArgmaxIoUConfig,
    ATSSConfig,
    FocalLossConfig,
    HuberLossConfig,
    L1LossConfig,
    OverlapLossConfig,
    QualityFocalLossConfig,
    RetinaNetConfig,
    SmoothL1LossConfig,
    VarifocalLossConfig,
)
from tpudet.detection.modeling.fpn import FPN, IdentityNeck
from tpudet.detection.modeling.losses import (
    focal_loss,
    huber_box_loss,
    l1_box_loss,
    overlap_box_loss,
    quality_focal_loss,
    smooth_l1_box_loss,
    varifocal_loss,
)
from tpudet.detection.modeling.nas_fpn import NASFPN
from tpudet.detection.modeling.postprocess import postprocess
from tpudet.detection.modeling.pyramid_config import (
    BiFPNConfig,
    FPNConfig,
    IdentityNeckConfig,
    NASFPNConfig,
)
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.detection.ops.atss import match_atss
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.config import (
    EfficientNetConfig,
    MobileNetV3Config,
    ResNetConfig,
    SEResNeXtConfig,
)
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.layers import Conv
from tpudet.trainkit.backbones.mobilenet_v3 import MobileNetV3
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.backbones.seresnext import SEResNeXt
from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.freezing import freeze, frozen_at_random

CANVAS = (128, 256)
NORM = "batch_norm: {momentum: 0.75, epsilon: 0.25, frozen: true, synchronized: false}"
SHARED = f"gradient_checkpointing: true, {NORM}"
DROP_BLOCK = "drop_block: {keep_prob: 0.75, size: 3, schedule_steps: 9}"

# What a file says of each kind.
TEXTS: dict[type, str] = {
    ResNetConfig: f"""backbone: {{kind: resnet, depth: 101, groups: 2,
    group_width: 16, style: torch, {DROP_BLOCK}, {SHARED}}}""",
    EfficientNetConfig: f"""backbone: {{kind: efficientnet, variant: b1, style: torch,
    drop_connect_rate: 0.5, {SHARED}}}""",
    SEResNeXtConfig: f"backbone: {{kind: seresnext, depth: 101, {SHARED}}}",
    MobileNetV3Config: f"backbone: {{kind: mobilenet_v3, {SHARED}}}",
    FPNConfig: """neck: {kind: fpn, num_filters: 24, separable: true, coarse_levels: convolution,
    coarse_input: backbone, symmetric_padding: true, coarse_relu: false, lateral_norms: true}""",
    NASFPNConfig: f"""neck: {{kind: nas_fpn, num_filters: 24, num_repeats: 2, separable: true,
    {DROP_BLOCK}}}""",
    BiFPNConfig: "neck: {kind: bifpn, num_filters: 24, num_repeats: 2}",
    IdentityNeckConfig: "{neck: {kind: identity}, min_level: 4, max_level: 4}",
    ArgmaxIoUConfig: """matching: {kind: argmax_iou, match_threshold: 0.75,
    unmatched_threshold: 0.25, force_match: false, forced_target: argmax}""",
    ATSSConfig: "matching: {kind: atss, candidates_per_level: 5}",
    FocalLossConfig: "class_loss: {kind: focal, alpha: 0.75, gamma: 3, label_smoothing: 0.125}",
    QualityFocalLossConfig: "class_loss: {kind: quality_focal, beta: 3}",
    VarifocalLossConfig: "class_loss: {kind: varifocal, alpha: 0.5, gamma: 3}",
    HuberLossConfig: "box_loss: {kind: huber, delta: 0.5, weight: 3}",
    SmoothL1LossConfig: "box_loss: {kind: smooth_l1, beta: 0.5, weight: 3}",
    L1LossConfig: "box_loss: {kind: l1, weight: 3}",
    OverlapLossConfig: "box_loss: {kind: ciou, weight: 3}",
}
UNIONS = {
    name: typing.get_args(hint)
    for name, hint in typing.get_type_hints(RetinaNetConfig).items()
    if sum(dataclasses.is_dataclass(member) for member in typing.get_args(hint)) > 1
}


def config_of(text: str) -> ExperimentConfig:
    text = text if text.startswith("{") else f"{{{text}}}"
    return decode(ExperimentConfig, parse_tree(f"model: {text}", "experiment.yaml"))


def built(text: str, **settings: Any) -> RetinaNetTask:
    """The detector without values for its variables, which would take most of the time."""
    with keras.StatelessScope(initialize_variables=False):
        task = build_task(config_of(text), num_classes=3, canvas_size=CANVAS, **settings)
    assert isinstance(task, RetinaNetTask)
    return task


def parts(layer: keras.layers.Layer, kind: type) -> list[Any]:
    return [part for part in layer._flatten_layers() if isinstance(part, kind)]


def settings_of_norms(layer: keras.layers.Layer) -> set[tuple[float, float, bool, bool]]:
    return {
        (norm.momentum, norm.epsilon, norm.frozen, norm.synchronized)
        for norm in parts(layer, BatchNorm)
    }


def settings_of_drop_blocks(layer: keras.layers.Layer) -> set[tuple[float, int, int]]:
    blocks = parts(layer, DropBlock)
    assert len({block.seed for block in blocks}) == len(blocks) > 0
    return {(block.keep_prob, block.size, block.schedule_steps) for block in blocks}


def defaults_in(config: Any, default: Any, name: str) -> list[str]:
    """The keys of a config, and of what is inside, that are as they are by default."""
    if not dataclasses.is_dataclass(default) or type(config) is not type(default):
        return [name] if config == default else []
    return [
        found
        for field in dataclasses.fields(config)
        if field.name != "kind"
        for found in defaults_in(
            getattr(config, field.name), getattr(default, field.name), f"{name}.{field.name}"
        )
    ]


def test_every_kind_has_a_case() -> None:
    assert set(UNIONS) == {"backbone", "neck", "matching", "class_loss", "box_loss"}
    assert set(TEXTS) == {member for members in UNIONS.values() for member in members}


@pytest.mark.parametrize("member", TEXTS)
def test_every_key_of_a_case_has_a_value_of_its_own(member: type) -> None:
    (name,) = (name for name, members in UNIONS.items() if member in members)
    config = getattr(config_of(TEXTS[member]).model, name)
    assert type(config) is member
    # A level 6 of the backbone leaves no two convolved levels, which coarse_relu needs.
    expected = ["neck.last_backbone_level"] if member is FPNConfig else []
    assert defaults_in(config, member(), name) == expected


def check_backbone(backbone: Any, kind: type) -> None:
    assert type(backbone) is kind
    assert backbone.gradient_checkpointing is True
    assert settings_of_norms(backbone) == {(0.75, 0.25, True, False)}
    assert list(backbone.channels) == [2, 3, 4, 5]


def test_resnet() -> None:
    backbone: Any = built(TEXTS[ResNetConfig]).model.backbone
    check_backbone(backbone, ResNet)
    assert [len(blocks) for blocks in backbone.stages] == [3, 4, 23, 3]
    assert [conv.filters for conv in backbone.stages[1][0].convs] == [64, 64, 512]
    assert [conv.groups for conv in backbone.stages[1][0].convs] == [1, 2, 1]
    assert backbone.style == "torch"
    assert settings_of_drop_blocks(backbone) == {(0.75, 3, 9)}


def test_efficientnet() -> None:
    backbone: Any = built(TEXTS[EfficientNetConfig]).model.backbone
    check_backbone(backbone, EfficientNet)
    assert len(backbone.blocks) == 23
    assert backbone.style == "torch"
    assert backbone.blocks[-1].drop_rate == pytest.approx(0.5 * 22 / 23)


def test_seresnext() -> None:
    backbone: Any = built(TEXTS[SEResNeXtConfig]).model.backbone
    check_backbone(backbone, SEResNeXt)
    assert [len(blocks) for blocks in backbone.stages] == [3, 4, 23, 3]


@pytest.mark.parametrize(
    ("kind", "epsilon"),
    [("resnet", 1e-4), ("efficientnet", 1e-3), ("seresnext", 1e-5), ("mobilenet_v3", 1e-3)],
)
def test_epsilon_of_itself(kind: str, epsilon: float) -> None:
    model = built(f"backbone: {{kind: {kind}, batch_norm: {{epsilon: auto}}}}").model
    assert {norm.epsilon for norm in parts(model.backbone, BatchNorm)} == {epsilon}
    assert {norm.epsilon for norm in parts(model.neck, BatchNorm)} == {1e-4}


def test_fpn() -> None:
    neck: Any = built(f"{TEXTS[FPNConfig]}, {NORM}").model.neck
    assert (type(neck), list(neck.levels), neck.num_filters) == (FPN, [3, 4, 5, 6, 7], 24)
    assert {conv.kind for conv in parts(neck, Conv)} == {"separable"}
    assert neck.coarse_from_backbone
    assert not neck.coarse_relu
    assert list(neck.lateral_norms) == [3, 4, 5]
    assert [level for level, conv in neck.convs.items() if conv.explicit_padding] == [6, 7]
    assert settings_of_norms(neck) == {(0.75, 0.25, True, False)}


def test_mobilenet_v3() -> None:
    backbone: Any = built(TEXTS[MobileNetV3Config]).model.backbone
    check_backbone(backbone, MobileNetV3)
    model = built("backbone: {kind: mobilenet_v3}, neck: {kind: fpn, last_backbone_level: 6}")
    assert list(model.model.backbone.channels) == [2, 3, 4, 5, 6]
    # 128 x 256 pixels: levels 3 to 5, then 6 with the stride of 5, then 7.
    places = 16 * 32 + 8 * 16 + 4 * 8 + 4 * 8 + 2 * 4
    assert model.anchors.shape == (places * 9, 4)


@pytest.mark.parametrize(
    "text", ["backbone: {kind: resnet}", "backbone: {kind: mobilenet_v3}, max_level: 5"]
)
def test_only_a_mobilenet_has_a_sixth_level(text: str) -> None:
    with pytest.raises(ConfigError, match="neck.last_backbone_level is 6, which only a mobilenet"):
        config_of(f"{text}, neck: {{kind: fpn, last_backbone_level: 6}}")


@pytest.mark.parametrize(("levels", "convolved"), [("convolution", 7), ("subsample", 5)])
def test_coarse_levels_come_about_as_told(levels: str, convolved: int) -> None:
    neck: Any = built(f"neck: {{kind: fpn, coarse_levels: {levels}}}, {NORM}").model.neck
    assert list(neck.levels) == [3, 4, 5, 6, 7]
    assert list(neck.convs) == list(range(3, convolved + 1))


def test_nas_fpn() -> None:
    model = built(f"{TEXTS[NASFPNConfig]}, backbone: {{kind: resnet, {DROP_BLOCK}}}, {NORM}").model
    neck: Any = model.neck
    assert (type(neck), len(neck.cells), neck.num_filters) == (NASFPN, 2, 24)
    assert {conv.kind for cell in neck.cells for conv in cell.convs} == {"separable"}
    assert settings_of_norms(neck) == {(0.75, 0.25, True, False)}
    assert settings_of_drop_blocks(neck) == {(0.75, 3, 9)}
    # Backbone and neck would else drop alike.
    assert len(parts(model.backbone, DropBlock)) > 0
    assert len({b.seed for b in parts(model, DropBlock)}) == len(parts(model, DropBlock))


def test_bifpn() -> None:
    neck: Any = built(f"{TEXTS[BiFPNConfig]}, min_level: 4, {NORM}").model.neck
    assert (type(neck), len(neck.cells), neck.num_filters) == (BiFPN, 2, 24)
    assert list(neck.levels) == [4, 5, 6, 7]
    assert settings_of_norms(neck) == {(0.75, 0.25, True, False)}


def test_identity() -> None:
    task = built(TEXTS[IdentityNeckConfig])
    neck: Any = task.model.neck
    assert (type(neck), neck.level, neck.num_filters) == (IdentityNeck, 4, 1024)
    assert list(task.model.backbone.channels) == [2, 3, 4]
    assert task.anchors.shape == (8 * 16 * 9, 4)


def bound(part: Any) -> tuple[Any, dict[str, Any]]:
    assert isinstance(part, functools.partial)
    assert part.args == ()
    return part.func, part.keywords


def test_matching() -> None:
    assert bound(built(TEXTS[ArgmaxIoUConfig]).match) == (
        match_argmax_iou,
        {
            "match_threshold": 0.75,
            "unmatched_threshold": 0.25,
            "force_match": False,
            "forced_target": "argmax",
        },
    )
    text = f"{TEXTS[ATSSConfig]}, min_level: 4, max_level: 6"
    places = (8 * 16, 4 * 8, 2 * 4)
    assert bound(built(text).match) == (
        match_atss,
        {"locations_per_level": places, "candidates_per_level": 5},
    )


def test_class_losses() -> None:
    for member, expected in (
        (FocalLossConfig, (focal_loss, {"alpha": 0.75, "gamma": 3.0, "label_smoothing": 0.125})),
        (QualityFocalLossConfig, (quality_focal_loss, {"beta": 3.0})),
        (VarifocalLossConfig, (varifocal_loss, {"alpha": 0.5, "gamma": 3.0})),
    ):
        assert bound(built(TEXTS[member]).class_loss) == expected


def test_box_losses() -> None:
    for member, expected in (
        (HuberLossConfig, (huber_box_loss, {"delta": 0.5})),
        (SmoothL1LossConfig, (smooth_l1_box_loss, {"beta": 0.5})),
        (OverlapLossConfig, (overlap_box_loss, {"kind": "ciou"})),
    ):
        task = built(TEXTS[member])
        assert bound(task.box_loss) == expected
        assert task.box_loss_weight == 3.0
    task = built(TEXTS[L1LossConfig])
    assert (task.box_loss, task.box_loss_weight) == (l1_box_loss, 3.0)
    for kind in ("iou", "giou", "diou", "ciou"):
        assert bound(built(f"box_loss: {{kind: {kind}}}").box_loss)[1] == {"kind": kind}


def test_head_anchors_and_what_becomes_of_scores() -> None:
    text = f"""min_level: 4, max_level: 6, normalization: inception, padding: mean, {NORM},
    head: {{num_convs: 2, num_filters: 24, separable: true, activation: silu,
      norm_groups: 8, norm_epsilon: 0.5, level_scales: true, centerness: true}},
    anchors: {{num_scales: 2, aspect_ratios: [1, 4], size: 3, layout: torchvision}},
    loss_normalization: image,
    postprocess: {{score_threshold: 0.25, nms_iou_threshold: 0.75, max_candidates: 70,
      max_candidates_per_level: 60, max_detections: 7, class_agnostic: true}}"""
    for name, config in vars(config_of(text).model).items():
        if name not in UNIONS and name != "kind":
            default = getattr(RetinaNetConfig(), name)
            found = defaults_in(config, default, name)
            assert found == (["anchors.sides"] if name == "anchors" else [])  # instead of size
    task = built(text)
    head: Any = task.model.head
    assert list(head.levels) == [4, 5, 6]
    for tower in (head.class_tower, head.box_tower):
        assert [conv.filters for conv in tower.convs] == [24, 24]
        assert tower.activation == "silu"
    assert {conv.kind for conv in parts(head, Conv)} == {"separable"}
    assert (head.class_predict.filters, head.box_predict.filters) == (3 * 4, 4 * 4)
    norms = head.class_tower.group_norms
    assert [(norm.groups, norm.epsilon) for norm in norms] == [(8, 0.5), (8, 0.5)]
    assert list(head.box_scales) == [4, 5, 6]
    assert head.centerness_predict.filters == 4
    assert not parts(head, BatchNorm)
    assert task.anchors.shape == ((8 * 16 + 4 * 8 + 2 * 4) * 4, 4)
    # Of 3 strides of 16 pixels: the square, one of sqrt(2) times its side, 67 of 67.88, and one
    # twice as wide and half as high.
    np.testing.assert_allclose(task.anchors[0], [-24, -24, 24, 24])
    np.testing.assert_allclose(task.anchors[1], [-34, -34, 34, 34])
    np.testing.assert_allclose(task.anchors[2], [-12, -48, 12, 48])
    assert (task.padding, task.loss_normalization) == ("mean", "image")
    assert task.model.pixel_mean == task.model.pixel_std == (0.5, 0.5, 0.5)
    assert bound(task.postprocess) == (
        postprocess,
        {
            "score_threshold": 0.25,
            "iou_threshold": 0.75,
            "max_candidates": 70,
            "max_detections": 7,
            "max_candidates_per_level": 60,
            "anchors_per_level": [8 * 16 * 4, 4 * 8 * 4, 2 * 4 * 4],
            "class_agnostic": True,
        },
    )


def test_statistics_are_synchronized_where_config_and_machine_say_so() -> None:
    for wanted in ("true", "false"):
        norm = f"batch_norm: {{synchronized: {wanted}}}"
        for several in (True, False):
            model = built(f"{norm}, backbone: {{kind: resnet, {norm}}}", synchronized=several).model
            found = {norm.synchronized for norm in parts(model, BatchNorm)}
            assert found == {wanted == "true" and several}


def test_frozen_norms_without_weights_are_told() -> None:
    """Of ResNet-18 20 norms, of 4 variables each; the neck's and the head's are not among them."""
    frozen = freeze(
        built("backbone: {kind: resnet, depth: 18, batch_norm: {frozen: true}}").model, []
    )
    assert "80 of the 80 frozen variables" in frozen_at_random(frozen, loaded=())
    frozen = freeze(
        built("backbone: {kind: resnet, depth: 18}, batch_norm: {frozen: true}").model, []
    )
    assert len(frozen.variables) == 4 * (5 + 2 * 4 * 5)
    assert all(path.startswith(("neck/", "head/")) for path in frozen.variables)
