"""Builds a RetinaNet and its task from their config."""

import functools
from collections.abc import Callable

from tpudet.detection.modeling.build_pyramid import (
    build_anchors,
    build_argmax_match,
    build_pyramid,
    count_anchors,
    optional_norm_factory,
)
from tpudet.detection.modeling.config import (
    ArgmaxIoUConfig,
    ATSSConfig,
    BoxLossConfig,
    ClassLossConfig,
    FocalLossConfig,
    HuberLossConfig,
    L1LossConfig,
    OverlapLossConfig,
    QualityFocalLossConfig,
    RetinaNetConfig,
    SmoothL1LossConfig,
    VarifocalLossConfig,
)
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.losses import (
    focal_loss,
    huber_box_loss,
    l1_box_loss,
    overlap_box_loss,
    quality_focal_loss,
    smooth_l1_box_loss,
    varifocal_loss,
)
from tpudet.detection.modeling.postprocess import postprocess
from tpudet.detection.modeling.retinanet import BoxLoss, ClassLoss, Match, RetinaNet, RetinaNetTask
from tpudet.detection.ops.anchors import locations_per_level
from tpudet.detection.ops.atss import match_atss
from tpudet.trainkit.types import Tensor


def build_retinanet(
    model: RetinaNetConfig,
    *,
    num_classes: int,
    canvas_size: tuple[int, int],
    seed: int,
    synchronized: bool,
    sum_over_replicas: Callable[[Tensor], Tensor],
) -> RetinaNetTask:
    """Builds network, losses and postprocessing.

    Args:
        model: without `auto`.
        num_classes: rows of classes.csv.
        canvas_size: height and width in pixels.
        seed: of the layers that drop units.
        synchronized: whether batch statistics span all replicas.
        sum_over_replicas: adds up a scalar over all replicas.
    """
    post = model.postprocess
    return RetinaNetTask(
        model=_build_network(model, num_classes=num_classes, synchronized=synchronized, seed=seed),
        anchors=build_anchors(model, model.anchors, canvas_size),
        sum_over_replicas=sum_over_replicas,
        match=_build_match(model, canvas_size),
        class_loss=_build_class_loss(model.class_loss),
        box_loss=_build_box_loss(model.box_loss),
        box_loss_weight=model.box_loss.weight,
        loss_normalization=model.loss_normalization,
        padding=model.padding,
        postprocess=functools.partial(
            postprocess,
            score_threshold=post.score_threshold,
            iou_threshold=post.nms_iou_threshold,
            max_candidates=post.max_candidates,
            max_candidates_per_level=post.max_candidates_per_level,
            anchors_per_level=count_anchors(model, model.anchors, canvas_size),
            max_detections=post.max_detections,
            class_agnostic=post.class_agnostic,
        ),
    )


def _build_network(
    model: RetinaNetConfig, *, num_classes: int, synchronized: bool, seed: int
) -> RetinaNet:
    pyramid = build_pyramid(model, synchronized=synchronized, seed=seed)
    head = RetinaNetHead(
        num_classes=num_classes,
        anchors_per_location=model.anchors.per_location,
        min_level=model.min_level,
        max_level=model.max_level,
        num_convs=model.head.num_convs,
        num_filters=model.head.num_filters,
        separable=model.head.separable,
        activation=model.head.activation,
        norm_groups=model.head.norm_groups,
        norm_epsilon=model.head.norm_epsilon,
        level_scales=model.head.level_scales,
        centerness=model.head.centerness,
        make_norm=optional_norm_factory(model.batch_norm, synchronized=synchronized),
    )
    return RetinaNet(
        backbone=pyramid.backbone,
        neck=pyramid.neck,
        head=head,
        pixel_mean=pyramid.pixel_mean,
        pixel_std=pyramid.pixel_std,
    )


def _build_match(model: RetinaNetConfig, canvas_size: tuple[int, int]) -> Match:
    matching = model.matching
    match matching:
        case ArgmaxIoUConfig():
            return build_argmax_match(matching)
        case ATSSConfig():
            return functools.partial(
                match_atss,
                locations_per_level=locations_per_level(
                    canvas_size=canvas_size, strides=model.strides
                ),
                candidates_per_level=matching.candidates_per_level,
            )


def _build_class_loss(loss: ClassLossConfig) -> ClassLoss:
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


def _build_box_loss(loss: BoxLossConfig) -> BoxLoss:
    match loss:
        case HuberLossConfig():
            return functools.partial(huber_box_loss, delta=loss.delta)
        case SmoothL1LossConfig():
            return functools.partial(smooth_l1_box_loss, beta=loss.beta)
        case L1LossConfig():
            return l1_box_loss
        case OverlapLossConfig():
            return functools.partial(overlap_box_loss, kind=loss.kind)
