"""Converts the model's part of the predecessor's settings."""

import re
from typing import Any, NamedTuple

from tpudet.detection.legacy.settings import Settings
from tpudet.detection.legacy.shared_settings import BatchNorm, DropBlock, SharedSettings
from tpudet.trainkit.config.decode import ConfigError


class Backbone(NamedTuple):
    """`architecture.backbone`, parsed."""

    kind: str  # resnet, efficientnet, seresnext
    number: int  # depth, or the number of the EfficientNet


def parse_backbone(settings: SharedSettings) -> Backbone:
    """Parses `architecture.backbone`; ConfigError if there is no such backbone here."""
    name = re.sub(r"[^a-z0-9]", "", settings.architecture.backbone.lower())
    depth = settings.resnet.resnet_depth
    if name == "resnet":
        return Backbone("resnet", depth)
    if efficientnet := re.fullmatch(r"efficientnetb([0-8])", name):
        return Backbone("efficientnet", int(efficientnet[1]))
    if seresnext := re.fullmatch(r"seresnext(50|101)?", name):
        depth = int(seresnext[1] or depth)
        if depth not in (50, 101):
            raise ConfigError(
                f"resnet.resnet_depth is {depth}, which is that of architecture.backbone "
                f"{settings.architecture.backbone} too; SE-ResNeXt has 50 or 101"
            )
        return Backbone("seresnext", depth)
    raise ConfigError(
        f"architecture.backbone is {settings.architecture.backbone}; known are resnet, "
        "efficientnet-b0 to efficientnet-b8 and seresnext"
    )


def model_values(settings: Settings, backbone: Backbone, remarks: list[str]) -> dict[str, Any]:
    """Returns the `model` section, and adds its differences to the remarks."""
    parser, loss, head = (
        settings.retinanet_parser,
        settings.retinanet_loss,
        settings.retinanet_head,
    )
    neck_name = settings.architecture.multilevel_features
    norm = head.batch_norm if neck_name == "identity" else settings.pyramid.batch_norm
    if norm != head.batch_norm:
        remarks.append(
            f"retinanet_head.batch_norm differs from that of {neck_name}: model.batch_norm is one "
            f"for both, and {neck_name}'s counts"
        )
    return {
        "kind": "retinanet",
        **detector_values(settings, backbone, norm, remarks),
        "head": {
            "num_convs": head.retinanet_head_num_convs,
            "num_filters": head.retinanet_head_num_filters,
            "separable": head.use_separable_conv,
        },
        "matching": {
            "kind": "argmax_iou",
            "match_threshold": parser.match_threshold,
            "unmatched_threshold": parser.unmatched_threshold,
            "force_match": True,
        },
        "class_loss": {
            "kind": "focal",
            "alpha": loss.focal_loss_alpha,
            "gamma": loss.focal_loss_gamma,
        },
        "box_loss": {
            "kind": "huber",
            "delta": loss.huber_loss_delta,
            "weight": loss.box_loss_weight,
        },
    }


def detector_values(
    settings: SharedSettings, backbone: Backbone, norm: BatchNorm, remarks: list[str]
) -> dict[str, Any]:
    """Returns what the `model` sections of both detectors have, and adds to the remarks."""
    anchor, post = settings.anchor, settings.postprocess
    return {
        "min_level": anchor.min_level,
        "max_level": anchor.max_level,
        "normalization": "imagenet",
        "backbone": _backbone_values(settings, backbone, remarks),
        "neck": _neck_values(settings, remarks),
        "batch_norm": _batch_norm_values(norm),
        "anchors": {
            "num_scales": anchor.num_scales,
            "aspect_ratios": list(anchor.aspect_ratios),
            "size": anchor.anchor_size,
        },
        "postprocess": {
            "score_threshold": post.score_threshold,
            "nms_iou_threshold": post.nms_iou_threshold,
            "max_candidates": max(post.pre_nms_num_boxes, post.max_total_size),
            "max_detections": post.max_total_size,
        },
    }


def _backbone_values(
    settings: SharedSettings, backbone: Backbone, remarks: list[str]
) -> dict[str, Any]:
    """Returns `model.backbone`, and adds its differences to the remarks."""
    if backbone.kind == "efficientnet":
        return {"kind": "efficientnet", "variant": f"b{backbone.number}"}
    if backbone.kind == "seresnext":
        remarks.append(
            "SE-ResNeXt never updated its BatchNorm statistics there, which made its evaluations "
            "meaningless; here it does"
        )
        return {"kind": "seresnext", "depth": backbone.number}
    values = {
        "kind": "resnet",
        "depth": backbone.number,
        "batch_norm": _batch_norm_values(settings.resnet.batch_norm),
    }
    return values | _drop_block(settings.resnet.dropblock, remarks)


def _neck_values(settings: SharedSettings, remarks: list[str]) -> dict[str, Any]:
    """Returns `model.neck`, and adds its differences to the remarks."""
    neck = settings.architecture.multilevel_features
    if neck == "identity":
        return {"kind": "identity"}
    if neck == "fpn":
        fpn = settings.fpn
        return {
            "kind": "fpn",
            "num_filters": fpn.fpn_feat_dims,
            "separable": fpn.use_separable_conv,
        }
    nas = settings.nasfpn
    return {
        "kind": "nas_fpn",
        "num_filters": nas.fpn_feat_dims,
        "num_repeats": nas.num_repeats,
        "separable": nas.use_separable_conv,
    } | _drop_block(nas.dropblock, remarks)


def _drop_block(drop_block: DropBlock, remarks: list[str]) -> dict[str, Any]:
    keep_prob, size = drop_block.dropblock_keep_prob, drop_block.dropblock_size
    if keep_prob is None or size is None:
        return {}
    remarks.append(
        f"dropblock (keep_prob {keep_prob:g}, size {size}): on maps that are not square or hardly "
        "larger than a block it dropped another share there; here it drops the configured share. "
        "In a ResNet it acted on all four stages, of depths 50 and more only; here on stages 3 and "
        "4 of any depth"
    )
    return {"drop_block": {"keep_prob": keep_prob, "size": size}}


def _batch_norm_values(norm: BatchNorm) -> dict[str, Any]:
    """Returns the settings of norms."""
    values: dict[str, Any] = {"momentum": norm.batch_norm_momentum}
    if norm.batch_norm_epsilon != BatchNorm().batch_norm_epsilon:  # else as the weights want
        values["epsilon"] = norm.batch_norm_epsilon
    if norm.use_sync_bn is not None:
        values["synchronized"] = norm.use_sync_bn
    return values if norm.batch_norm_trainable else values | {"frozen": True}
