"""From the model's part of a config to the detector: backbone, neck, head, matching, losses."""

import functools
from collections.abc import Callable

import keras

from detection.config import ExperimentConfig
from detection.model_config import (
    ArgmaxIoUConfig,
    ATSSConfig,
    EfficientNetConfig,
    FocalLossConfig,
    HuberLossConfig,
    OverlapLossConfig,
    QualityFocalLossConfig,
    ResNetConfig,
    RetinaNetConfig,
    SmoothL1LossConfig,
    VarifocalLossConfig,
)
from detection.modeling.box_losses import huber_box_loss, overlap_box_loss, smooth_l1_box_loss
from detection.modeling.class_losses import focal_loss, quality_focal_loss, varifocal_loss
from detection.modeling.fpn import FPN
from detection.modeling.heads import RetinaNetHead
from detection.modeling.retinanet import BoxLoss, ClassLoss, Match, RetinaNet, RetinaNetTask
from detection.ops.anchors import anchors_for_canvas, locations_per_level
from detection.ops.atss import match_atss
from detection.ops.matching import match_argmax_iou
from detection.types import Tensor
from trainkit.backbones.efficientnet import EfficientNet
from trainkit.backbones.resnet import ResNet


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
    model = config.model
    norm = {
        "batch_norm_momentum": model.batch_norm.momentum,
        "batch_norm_epsilon": model.batch_norm.epsilon,
        "synchronized": synchronized,
    }
    anchors = model.anchors
    return RetinaNet(
        backbone=_build_backbone(model.backbone, synchronized, config.train.seed),
        neck=FPN(
            min_level=model.min_level,
            max_level=model.max_level,
            num_filters=model.neck.num_filters,
            **norm,
        ),
        head=RetinaNetHead(
            num_classes=num_classes,
            anchors_per_location=anchors.num_scales * len(anchors.aspect_ratios),
            min_level=model.min_level,
            max_level=model.max_level,
            num_convs=model.head.num_convs,
            num_filters=model.head.num_filters,
            separable=model.head.separable,
            activation=model.head.activation,
            batch_norm_frozen=model.batch_norm.frozen,
            **norm,
        ),
    )


def _build_backbone(
    backbone: ResNetConfig | EfficientNetConfig, synchronized: bool, seed: int
) -> keras.layers.Layer:
    norm = {
        "batch_norm_momentum": backbone.batch_norm.momentum,
        "batch_norm_epsilon": backbone.batch_norm.epsilon,
        "synchronized": synchronized,
    }
    match backbone:
        case ResNetConfig():
            return ResNet(depth=backbone.depth, **norm)
        case EfficientNetConfig():
            return EfficientNet(
                variant=backbone.variant,
                drop_connect_rate=backbone.drop_connect_rate,
                seed=seed,
                **norm,
            )
