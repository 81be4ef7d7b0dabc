"""From the model's part of a config to the detector: backbone, neck, head, matching, losses."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.config import (
    ArgmaxIoUConfig,
    ATSSConfig,
    BiFPNConfig,
    FocalLossConfig,
    FPNConfig,
    HuberLossConfig,
    IdentityNeckConfig,
    NASFPNConfig,
    OverlapLossConfig,
    QualityFocalLossConfig,
    RetinaNetConfig,
    SmoothL1LossConfig,
    VarifocalLossConfig,
)
from tpudet.detection.modeling.fpn import COARSEST_BACKBONE_LEVEL, FPN, IdentityNeck
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.losses import (
    focal_loss,
    huber_box_loss,
    overlap_box_loss,
    quality_focal_loss,
    smooth_l1_box_loss,
    varifocal_loss,
)
from tpudet.detection.modeling.nas_fpn import NASFPN
from tpudet.detection.modeling.retinanet import BoxLoss, ClassLoss, Match, RetinaNet, RetinaNetTask
from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level
from tpudet.detection.ops.atss import match_atss
from tpudet.detection.ops.matching import match_argmax_iou
from tpudet.trainkit.backbones.batch_norm import BatchNorm, MakeNorm
from tpudet.trainkit.backbones.config import (
    AUTO_EPSILON,
    BACKBONE_AUTO_EPSILON,
    BatchNormConfig,
    DropBlockConfig,
    EfficientNetConfig,
    ResNetConfig,
    SEResNeXtConfig,
)
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.resnet import ResNet
from tpudet.trainkit.backbones.seresnext import SEResNeXt
from tpudet.trainkit.types import Tensor
from tpudet.trainkit.weights.families import NORMALIZATIONS

_NECK_SEED = 1 << 20


def build_task(
    config: ExperimentConfig,
    *,
    num_classes: int,
    canvas_size: tuple[int, int],
    synchronized: bool = False,
    sum_over_replicas: Callable[[Tensor], Tensor] = lambda value: value,
) -> RetinaNetTask:
    """Builds the detector; call it in a strategy's scope.

    Args:
        config: the experiment.
        num_classes: rows of classes.csv.
        canvas_size: height and width in pixels; `config.data.canvas_size`, or another for export.
        synchronized: whether batch statistics are those of all replicas together.
        sum_over_replicas: adds a scalar up over all replicas.
    """
    keras.utils.set_random_seed(config.train.seed)
    model, post = config.model, config.model.postprocess
    return RetinaNetTask(
        model=_build_model(config, num_classes=num_classes, synchronized=synchronized),
        anchors=anchors_for_canvas(
            canvas_size=canvas_size,
            min_level=model.min_level,
            max_level=model.max_level,
            num_scales=model.anchors.num_scales,
            aspect_ratios=model.anchors.aspect_ratios,
            anchor_size=model.anchors.size,
        ),
        canvas_size=canvas_size,
        sum_over_replicas=sum_over_replicas,
        match=_build_match(model, canvas_size),
        class_loss=_build_class_loss(model.class_loss),
        box_loss=_build_box_loss(model.box_loss),
        box_loss_weight=model.box_loss.weight,
        score_threshold=post.score_threshold,
        iou_threshold=post.nms_iou_threshold,
        max_candidates=post.max_candidates,
        max_detections=post.max_detections,
    )


def _build_match(model: RetinaNetConfig, canvas_size: tuple[int, int]) -> Match:
    matching = model.matching
    match matching:
        case ArgmaxIoUConfig():
            return functools.partial(
                match_argmax_iou,
                match_threshold=matching.match_threshold,
                unmatched_threshold=matching.unmatched_threshold,
                force_match=matching.force_match,
            )
        case ATSSConfig():
            return functools.partial(
                match_atss,
                locations_per_level=locations_per_level(
                    canvas_size=canvas_size, min_level=model.min_level, max_level=model.max_level
                ),
                candidates_per_level=matching.candidates_per_level,
            )


def _build_class_loss(
    loss: FocalLossConfig | QualityFocalLossConfig | VarifocalLossConfig,
) -> ClassLoss:
    match loss:
        case FocalLossConfig():
            return functools.partial(
                focal_loss,
                alpha=loss.alpha,
                gamma=loss.gamma,
                label_smoothing=loss.label_smoothing,
            )
        case QualityFocalLossConfig():
            return functools.partial(quality_focal_loss, beta=loss.beta)
        case VarifocalLossConfig():
            return functools.partial(varifocal_loss, alpha=loss.alpha, gamma=loss.gamma)


def _build_box_loss(loss: HuberLossConfig | SmoothL1LossConfig | OverlapLossConfig) -> BoxLoss:
    match loss:
        case HuberLossConfig():
            return functools.partial(huber_box_loss, delta=loss.delta)
        case SmoothL1LossConfig():
            return functools.partial(smooth_l1_box_loss, beta=loss.beta)
        case OverlapLossConfig():
            return functools.partial(overlap_box_loss, kind=loss.kind)


def _build_model(config: ExperimentConfig, *, num_classes: int, synchronized: bool) -> RetinaNet:
    model, head = config.model, config.model.head
    chosen = "imagenet" if model.normalization == "auto" else model.normalization
    pixel_mean, pixel_std = NORMALIZATIONS[chosen]
    return RetinaNet(
        backbone=_build_backbone(model, synchronized, config.train.seed),
        # Another seed than the backbone's, or the two would drop alike.
        neck=_build_neck(model, synchronized, config.train.seed + _NECK_SEED),
        head=RetinaNetHead(
            num_classes=num_classes,
            anchors_per_location=model.anchors.per_location,
            min_level=model.min_level,
            max_level=model.max_level,
            num_convs=head.num_convs,
            num_filters=head.num_filters,
            separable=head.separable,
            activation=head.activation,
            make_norm=_make_norm(model.batch_norm, synchronized),
        ),
        pixel_mean=pixel_mean,
        pixel_std=pixel_std,
    )


def _make_norm(
    batch_norm: BatchNormConfig, synchronized: bool, *, auto_epsilon: float = AUTO_EPSILON
) -> MakeNorm:
    return functools.partial(
        BatchNorm,
        momentum=batch_norm.momentum,
        epsilon=auto_epsilon if batch_norm.epsilon == "auto" else batch_norm.epsilon,
        frozen=batch_norm.frozen,
        synchronized=synchronized and batch_norm.synchronized,
    )


def _drop_block(config: DropBlockConfig | None) -> Callable[..., DropBlock] | None:
    if config is None:
        return None
    return functools.partial(
        DropBlock,
        keep_prob=config.keep_prob,
        size=config.size,
        schedule_steps=config.schedule_steps,
    )


def _build_backbone(model: RetinaNetConfig, synchronized: bool, seed: int) -> keras.layers.Layer:
    backbone = model.backbone
    settings: dict[str, Any] = {
        "max_level": min(model.max_level, COARSEST_BACKBONE_LEVEL),
        "gradient_checkpointing": backbone.gradient_checkpointing,
        "make_norm": _make_norm(
            backbone.batch_norm,
            synchronized,
            auto_epsilon=BACKBONE_AUTO_EPSILON[backbone.kind],
        ),
    }
    match backbone:
        case ResNetConfig():
            return ResNet(
                depth=backbone.depth,
                style="tensorflow" if backbone.style == "auto" else backbone.style,
                drop_block=_drop_block(backbone.drop_block),
                seed=seed,
                **settings,
            )
        case EfficientNetConfig():
            return EfficientNet(
                variant=backbone.variant,
                style="tensorflow" if backbone.style == "auto" else backbone.style,
                drop_connect_rate=backbone.drop_connect_rate,
                seed=seed,
                **settings,
            )
        case SEResNeXtConfig():
            return SEResNeXt(depth=backbone.depth, **settings)


def _build_neck(model: RetinaNetConfig, synchronized: bool, seed: int) -> keras.layers.Layer:
    neck = model.neck
    if isinstance(neck, IdentityNeckConfig):
        return IdentityNeck(level=model.min_level)
    settings: dict[str, Any] = {
        "num_filters": neck.num_filters,
        "min_level": model.min_level,
        "max_level": model.max_level,
        "make_norm": _make_norm(model.batch_norm, synchronized),
    }
    match neck:
        case FPNConfig():
            return FPN(separable=neck.separable, **settings)
        case NASFPNConfig():
            return NASFPN(
                num_repeats=neck.num_repeats,
                separable=neck.separable,
                drop_block=_drop_block(neck.drop_block),
                seed=seed,
                **settings,
            )
        case BiFPNConfig():
            return BiFPN(num_repeats=neck.num_repeats, **settings)
