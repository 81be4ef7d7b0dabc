"""Names of MMDetection's RetinaNet, ATSS, Faster R-CNN and Mask R-CNN, of its versions 2 and 3."""

from tpudet.detection.modeling.foreign_detectors import COCO_CLASSES, ForeignDetector, Layers

_HEAD, _ROI_BOXES, _MASKS = "bbox_head", "roi_head.bbox_head", "roi_head.mask_head"

_LAYERS: Layers = (
    (r"neck/lateral(?P<level>\d)", lambda n: (f"neck.lateral_convs.{n}.conv",)),
    (r"neck/conv(?P<level>\d)", lambda n: (f"neck.fpn_convs.{n}.conv",)),
    (r"head/class_tower/conv(?P<number>\d)", lambda n: (f"{_HEAD}.cls_convs.{n}.conv",)),
    (r"head/box_tower/conv(?P<number>\d)", lambda n: (f"{_HEAD}.reg_convs.{n}.conv",)),
    (r"head/class_tower/norm(?P<number>\d)", lambda n: (f"{_HEAD}.cls_convs.{n}.gn",)),
    (r"head/box_tower/norm(?P<number>\d)", lambda n: (f"{_HEAD}.reg_convs.{n}.gn",)),
    (r"head/class_predict", lambda n: (f"{_HEAD}.retina_cls", f"{_HEAD}.atss_cls")),
    (r"head/box_predict", lambda n: (f"{_HEAD}.retina_reg", f"{_HEAD}.atss_reg")),
    (r"head/centerness_predict", lambda n: (f"{_HEAD}.atss_centerness",)),
    (r"head/box_scale(?P<level>\d)", lambda n: (f"{_HEAD}.scales.{n}",)),
    (r"rpn/conv0", lambda n: ("rpn_head.rpn_conv",)),
    (r"rpn/object_predict", lambda n: ("rpn_head.rpn_cls",)),
    (r"rpn/box_predict", lambda n: ("rpn_head.rpn_reg",)),
    (r"box_head/dense(?P<number>\d)", lambda n: (f"{_ROI_BOXES}.shared_fcs.{n}",)),
    (r"box_head/class_predict", lambda n: (f"{_ROI_BOXES}.fc_cls",)),
    (r"box_head/box_predict", lambda n: (f"{_ROI_BOXES}.fc_reg",)),
    (r"mask_head/tower/conv(?P<number>\d)", lambda n: (f"{_MASKS}.convs.{n}.conv",)),
    (r"mask_head/upsample", lambda n: (f"{_MASKS}.upsample",)),
    (r"mask_head/mask_predict", lambda n: (f"{_MASKS}.conv_logits",)),
)

MMDETECTION = ForeignDetector(
    owner="MMDetection's detectors",
    mark=r"(^|\.)neck\.lateral_convs\.0\.conv\.",
    layers=_LAYERS,
    anchor_classes=(f"{_HEAD}.retina_cls.bias", f"{_HEAD}.atss_cls.bias"),
    region_classes=(f"{_ROI_BOXES}.fc_cls.bias",),
    coco_classes=COCO_CLASSES,
    background_first=False,
    extra_channels=(0,),
    ratios_first=True,
    # ATSS predicts boxes in these units.
    delta_factors={".atss_reg": (0.1, 0.1, 0.2, 0.2)},
    norm_mark=r"(^|\.)neck\.lateral_convs\.0\.bn\.",
    settings={
        "padding": "mean",
        "neck.kind": "fpn",
        "neck.symmetric_padding": True,
        "neck.coarse_relu": False,
        "anchors.layout": "corner",
        "anchors.aspect_ratios": (2.0, 1.0, 0.5),
        "roi_align.aligned": True,
    },
)
MMDETECTION_ATSS = MMDETECTION._replace(
    mark=r"(^|\.)bbox_head\.atss_cls\.",
    settings={**MMDETECTION.settings, "anchors.aspect_ratios": (1.0,)},
)
