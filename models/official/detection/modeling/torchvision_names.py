"""Names of torchvision's RetinaNet, Faster R-CNN and Mask R-CNN, of either version.

Before its version 0.13 convolutions had shorter names; published files have either. Class layers
have a channel for the background, 0, also in RetinaNet, where it is never trained. Level 6 is a
level of a RetinaNet's neck, or the second one of the backbone where that is a MobileNetV3.
"""

from tpudet.detection.modeling.foreign_detectors import COCO_LABELS, ForeignDetector, Layers

_CLASSES, _BOXES = "head.classification_head", "head.regression_head"
_REGIONS, _ROI_BOXES = "roi_heads.box_head", "roi_heads.box_predictor"
_MASKS = "roi_heads.mask_head"


def _spelled(layer: str, number: int, before: int) -> tuple[str, ...]:
    return f"{layer}.{number}.0", f"{layer}.{before}"


_LAYERS: Layers = (
    (r"neck/lateral(?P<level>\d)", lambda n: _spelled("backbone.fpn.inner_blocks", n, n)),
    (r"neck/conv(?P<level>[2-5])", lambda n: _spelled("backbone.fpn.layer_blocks", n, n)),
    (r"neck/lateral_norm(?P<level>\d)", lambda n: (f"backbone.fpn.inner_blocks.{n}.1",)),
    (r"neck/norm(?P<level>[2-5])", lambda n: (f"backbone.fpn.layer_blocks.{n}.1",)),
    (
        r"neck/conv(?P<number>[67])",
        lambda n: (f"backbone.fpn.extra_blocks.p{n}", f"backbone.fpn.layer_blocks.{n - 5}.0"),
    ),
    (r"head/class_tower/conv(?P<number>\d)", lambda n: _spelled(f"{_CLASSES}.conv", n, 2 * n)),
    (r"head/box_tower/conv(?P<number>\d)", lambda n: _spelled(f"{_BOXES}.conv", n, 2 * n)),
    (r"head/class_tower/norm(?P<number>\d)", lambda n: (f"{_CLASSES}.conv.{n}.1",)),
    (r"head/box_tower/norm(?P<number>\d)", lambda n: (f"{_BOXES}.conv.{n}.1",)),
    (r"head/class_predict", lambda n: (f"{_CLASSES}.cls_logits",)),
    (r"head/box_predict", lambda n: (f"{_BOXES}.bbox_reg",)),
    (r"rpn/conv(?P<number>\d)", lambda n: (f"rpn.head.conv.{n}.0", "rpn.head.conv")),
    (r"rpn/object_predict", lambda n: ("rpn.head.cls_logits",)),
    (r"rpn/box_predict", lambda n: ("rpn.head.bbox_pred",)),
    # In the second version of Faster and Mask R-CNN one layer behind four convolutions.
    (r"box_head/tower/conv(?P<number>\d)", lambda n: (f"{_REGIONS}.{n}.0",)),
    (r"box_head/tower/conv(?P<number>\d)/norm", lambda n: (f"{_REGIONS}.{n}.1",)),
    (
        r"box_head/dense(?P<number>\d)",
        lambda n: (f"{_REGIONS}.fc{6 + n}", f"{_REGIONS}.{5 + 2 * n}"),
    ),
    (r"box_head/class_predict", lambda n: (f"{_ROI_BOXES}.cls_score",)),
    (r"box_head/box_predict", lambda n: (f"{_ROI_BOXES}.bbox_pred",)),
    (
        r"mask_head/tower/conv(?P<number>\d)",
        lambda n: (f"{_MASKS}.{n}.0", f"{_MASKS}.mask_fcn{n + 1}"),
    ),
    (r"mask_head/tower/conv(?P<number>\d)/norm", lambda n: (f"{_MASKS}.{n}.1",)),
    (r"mask_head/upsample", lambda n: ("roi_heads.mask_predictor.conv5_mask",)),
    (r"mask_head/mask_predict", lambda n: ("roi_heads.mask_predictor.mask_fcn_logits",)),
)

TORCHVISION = ForeignDetector(
    owner="torchvision's detectors",
    mark=r"(^|\.)backbone\.fpn\.inner_blocks\.0\.",
    layers=_LAYERS,
    anchor_classes=(f"{_CLASSES}.cls_logits.bias",),
    region_classes=(f"{_ROI_BOXES}.cls_score.bias",),
    coco_classes=COCO_LABELS,
    background_first=True,
    extra_channels=(0, 1),
    ratios_first=False,  # model.anchors.layout torchvision has them first too
    delta_factors={},
    norm_mark=r"\.fpn\.inner_blocks\.0\.1\.",
    settings={
        "padding": "mean",
        "neck.kind": "fpn",
        "neck.symmetric_padding": True,
        "neck.coarse_relu": True,
        "anchors.layout": "torchvision",
        "anchors.aspect_ratios": (2.0, 1.0, 0.5),
        "roi_align.aligned": False,
    },
)
