"""Builds a Mask R-CNN, Faster R-CNN or Cascade R-CNN and its task from their config."""

import functools
from collections.abc import Callable, Sequence

from tpudet.detection.modeling.build_pyramid import (
    build_anchors,
    build_argmax_match,
    build_pyramid,
    count_anchors,
    optional_norm_factory,
)
from tpudet.detection.modeling.mask_rcnn import MaskRCNN
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mask_rcnn_task import CASCADE, FASTER_RCNN, BoxStage, MaskRCNNTask
from tpudet.detection.modeling.roi_heads import BoxHead, MaskHead
from tpudet.detection.modeling.rpn import RPNHead, propose
from tpudet.detection.modeling.two_stage_losses import box_head_losses, rpn_losses
from tpudet.detection.modeling.two_stage_postprocess import postprocess_rois
from tpudet.detection.ops.sampling import draw_balanced, sample_rois
from tpudet.trainkit.backbones.batch_norm import MakeNorm
from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL
from tpudet.trainkit.types import Tensor


def build_mask_rcnn(
    model: MaskRCNNConfig,
    *,
    num_classes: int,
    canvas_size: tuple[int, int],
    seed: int,
    synchronized: bool,
    sum_over_replicas: Callable[[Tensor], Tensor],
) -> MaskRCNNTask:
    """Builds network, losses and postprocessing.

    Args:
        model: without `auto`.
        num_classes: rows of classes.csv.
        canvas_size: height and width in pixels.
        seed: of the layers that drop units.
        synchronized: whether batch statistics span all replicas.
        sum_over_replicas: adds up a scalar over all replicas.
    """
    stages = _stages(model)
    propose_for = _build_propose(model, canvas_size)
    rpn, box_head, post = model.rpn, model.box_head, model.postprocess
    max_positives = _share(box_head.positive_share, box_head.regions_per_image)
    return MaskRCNNTask(
        model=_build_network(
            model, len(stages), num_classes=num_classes, seed=seed, synchronized=synchronized
        ),
        anchors=build_anchors(model, model.anchors, canvas_size),
        sum_over_replicas=sum_over_replicas,
        padding=model.padding,
        match=build_argmax_match(rpn),
        draw_anchors=functools.partial(
            draw_balanced,
            count=rpn.anchors_per_image,
            max_positives=_share(rpn.positive_share, rpn.anchors_per_image),
        ),
        rpn_losses=functools.partial(rpn_losses, beta=rpn.beta),
        propose_in_training=propose_for(
            max_candidates=rpn.max_candidates_in_training,
            max_proposals=rpn.max_proposals_in_training,
        ),
        propose=propose_for(max_candidates=rpn.max_candidates, max_proposals=rpn.max_proposals),
        clip_to=rpn.clip_to,
        sample_rois=functools.partial(
            sample_rois,
            iou_threshold=stages[0].iou_threshold,
            count=box_head.regions_per_image,
            max_positives=max_positives,
        ),
        max_mask_rois=max_positives,
        stages=stages,
        box_losses=functools.partial(box_head_losses, beta=box_head.beta),
        postprocess=functools.partial(
            postprocess_rois,
            score_threshold=post.score_threshold,
            iou_threshold=post.nms_iou_threshold,
            max_candidates=post.max_candidates,
            max_detections=post.max_detections,
        ),
    )


def _share(share: float, count: int) -> int:
    return max(1, round(share * count))


def _stages(model: MaskRCNNConfig) -> Sequence[BoxStage]:
    if model.cascade:
        return CASCADE
    return (FASTER_RCNN[0]._replace(iou_threshold=model.box_head.iou_threshold),)


def _build_network(
    model: MaskRCNNConfig, num_stages: int, *, num_classes: int, seed: int, synchronized: bool
) -> MaskRCNN:
    pyramid = build_pyramid(model, synchronized=synchronized, seed=seed)
    make_norm = optional_norm_factory(model.batch_norm, synchronized=synchronized)
    mask_head = None
    if model.include_mask:
        mask_head = MaskHead(
            num_classes=num_classes,
            num_convs=model.mask_head.num_convs,
            num_filters=model.mask_head.num_filters,
            make_norm=make_norm,
        )
    return MaskRCNN(
        backbone=pyramid.backbone,
        neck=pyramid.neck,
        rpn=RPNHead(
            anchors_per_location=model.anchors.per_location,
            num_convs=model.rpn.num_convs,
            num_filters=model.rpn.num_filters,
        ),
        box_heads=_build_box_heads(model, num_stages, num_classes=num_classes, make_norm=make_norm),
        mask_head=mask_head,
        roi_levels=range(model.min_level, min(model.max_level, COARSEST_BACKBONE_LEVEL) + 1),
        box_size=model.roi_align.box_size,
        mask_size=model.roi_align.mask_size,
        sampling_ratio=model.roi_align.sampling_ratio,
        aligned=model.roi_align.aligned,
        pixel_mean=pyramid.pixel_mean,
        pixel_std=pyramid.pixel_std,
    )


def _build_box_heads(
    model: MaskRCNNConfig, count: int, *, num_classes: int, make_norm: MakeNorm | None
) -> list[BoxHead]:
    head = model.box_head
    return [
        BoxHead(
            num_classes=num_classes,
            class_agnostic=head.class_agnostic,
            num_convs=head.num_convs,
            num_filters=head.num_filters,
            num_dense=head.num_dense,
            num_units=head.num_units,
            make_norm=make_norm,
            name="box_head" if count == 1 else f"box_head{number}",
        )
        for number in range(count)
    ]


def _build_propose(
    model: MaskRCNNConfig, canvas_size: tuple[int, int]
) -> Callable[..., functools.partial]:
    return functools.partial(
        functools.partial,
        propose,
        anchors_per_level=count_anchors(model, model.anchors, canvas_size),
        iou_threshold=model.rpn.nms_iou_threshold,
        min_score=model.rpn.min_score,
        min_side=model.rpn.min_side,
    )
