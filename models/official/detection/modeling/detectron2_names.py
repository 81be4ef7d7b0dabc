"""Names of Detectron2's RetinaNet, Faster R-CNN and Mask R-CNN on a feature pyramid."""

from tpudet.detection.modeling.foreign_detectors import COCO_CLASSES, ForeignDetector, Layers

_RPN, _ROI_BOXES = "proposal_generator.rpn_head", "roi_heads.box_predictor"
_MASKS = "roi_heads.mask_head"

_LAYERS: Layers = (
    (r"neck/lateral(?P<number>\d)", lambda n: (f"backbone.fpn_lateral{n}",)),
    (r"neck/conv(?P<number>[2-5])", lambda n: (f"backbone.fpn_output{n}",)),
    (r"neck/conv(?P<number>[67])", lambda n: (f"backbone.top_block.p{n}",)),
    # A convolution and its activation count one each.
    (r"head/class_tower/conv(?P<number>\d)", lambda n: (f"head.cls_subnet.{2 * n}",)),
    (r"head/box_tower/conv(?P<number>\d)", lambda n: (f"head.bbox_subnet.{2 * n}",)),
    (r"head/class_predict", lambda n: ("head.cls_score",)),
    (r"head/box_predict", lambda n: ("head.bbox_pred",)),
    (r"rpn/conv(?P<number>\d)", lambda n: (f"{_RPN}.conv.conv{n}", f"{_RPN}.conv")),
    (r"rpn/object_predict", lambda n: (f"{_RPN}.objectness_logits",)),
    (r"rpn/box_predict", lambda n: (f"{_RPN}.anchor_deltas",)),
    (r"box_head/tower/conv(?P<number>\d)", lambda n: (f"roi_heads.box_head.conv{n + 1}",)),
    (r"box_head/dense(?P<number>\d)", lambda n: (f"roi_heads.box_head.fc{n + 1}",)),
    (r"box_head/class_predict", lambda n: (f"{_ROI_BOXES}.cls_score",)),
    (r"box_head/box_predict", lambda n: (f"{_ROI_BOXES}.bbox_pred",)),
    (r"mask_head/tower/conv(?P<number>\d)", lambda n: (f"{_MASKS}.mask_fcn{n + 1}",)),
    (r"mask_head/upsample", lambda n: (f"{_MASKS}.deconv",)),
    (r"mask_head/mask_predict", lambda n: (f"{_MASKS}.predictor",)),
)

DETECTRON2 = ForeignDetector(
    owner="Detectron2's detectors",
    mark=r"(^|\.)backbone\.fpn_lateral\d\.",
    layers=_LAYERS,
    anchor_classes=("head.cls_score.bias",),
    region_classes=(f"{_ROI_BOXES}.cls_score.bias",),
    coco_classes=COCO_CLASSES,
    background_first=False,
    extra_channels=(0,),
    ratios_first=False,
    delta_factors={},
    norm_mark=r"\.fpn_lateral\d\.norm\.",
    settings={
        "padding": "mean",
        "neck.kind": "fpn",
        "neck.symmetric_padding": True,
        "neck.coarse_relu": True,
        "anchors.layout": "corner",
        "anchors.aspect_ratios": (2.0, 1.0, 0.5),
        "roi_align.aligned": True,
    },
)
