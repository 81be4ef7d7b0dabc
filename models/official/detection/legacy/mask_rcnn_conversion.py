"""Converts the model's part of the predecessor's Mask R-CNN settings."""

from typing import Any

from tpudet.detection.legacy.mask_rcnn_settings import MaskRCNNSettings
from tpudet.detection.legacy.model_conversion import Backbone, detector_values


def mask_rcnn_values(
    settings: MaskRCNNSettings, backbone: Backbone, remarks: list[str]
) -> dict[str, Any]:
    """Returns the `model` section, and adds its differences to the remarks."""
    _add_remarks(settings, remarks)
    return {
        "kind": "mask_rcnn",
        "include_mask": settings.architecture.include_mask,
        **detector_values(settings, backbone, settings.pyramid.batch_norm, remarks),
        "rpn": _rpn(settings),
        "roi_align": {"sampling_ratio": 1, "aligned": False},
        "box_head": {
            "num_convs": 0,
            "num_dense": 2,
            "num_units": settings.frcnn_head.fast_rcnn_mlp_head_dim,
            "iou_threshold": settings.roi_sampling.fg_iou_thresh,
            "regions_per_image": settings.roi_sampling.num_samples_per_image,
            "positive_share": settings.roi_sampling.fg_fraction,
            "beta": settings.frcnn_box_loss.huber_loss_delta,
        },
        "mask_head": {"num_convs": 4, "num_filters": 256},
    }


def _rpn(settings: MaskRCNNSettings) -> dict[str, Any]:
    parser, proposal = settings.maskrcnn_parser, settings.roi_proposal
    return {
        "num_convs": 1,
        "num_filters": 256,
        "match_threshold": parser.rpn_match_threshold,
        "unmatched_threshold": parser.rpn_unmatched_threshold,
        "force_match": True,
        "anchors_per_image": parser.rpn_batch_size_per_im,
        "positive_share": parser.rpn_fg_fraction,
        "beta": settings.rpn_box_loss.huber_loss_delta,
        "max_candidates_in_training": proposal.rpn_pre_nms_top_k,
        "max_candidates": proposal.test_rpn_pre_nms_top_k,
        "nms_iou_threshold": proposal.rpn_nms_threshold,
        "max_proposals_in_training": proposal.rpn_post_nms_top_k,
        "max_proposals": proposal.test_rpn_post_nms_top_k,
        "min_side": proposal.rpn_min_size_threshold,
    }


def _add_remarks(settings: MaskRCNNSettings, remarks: list[str]) -> None:
    norm, neck = settings.pyramid.batch_norm, settings.architecture.multilevel_features
    heads = [
        name
        for name in ("rpn_head", "frcnn_head", "mrcnn_head")
        if getattr(settings, name).batch_norm != norm
    ]
    if heads:
        remarks.append(
            f"batch_norm of {', '.join(heads)} differs from that of {neck}: model.batch_norm is "
            f"one for all, and {neck}'s counts"
        )
    remarks.append(
        "the losses of boxes were means of the Huber loss over encoded numbers that are not 0; "
        "here they are the smooth L1 loss (the Huber loss divided by its delta), summed over an "
        "object's four numbers and divided by the anchors or regions drawn, as in Detectron"
    )
    sampling, masks = settings.roi_sampling, settings.mask_sampling.num_mask_samples_per_image
    positives = round(sampling.num_samples_per_image * sampling.fg_fraction)
    if settings.architecture.include_mask and masks != positives:
        remarks.append(
            f"mask_sampling.num_mask_samples_per_image was {masks}; here the mask head is trained "
            f"on all objects among the regions drawn, at most {positives}"
        )
    if settings.eval.type == "box_and_mask" and not settings.architecture.include_mask:
        remarks.append(
            "architecture.include_mask is false, its default: this is a Faster R-CNN, which is "
            "evaluated by its boxes, although eval.type is box_and_mask"
        )
