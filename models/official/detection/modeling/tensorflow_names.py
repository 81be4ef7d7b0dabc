"""Names of the RetinaNet, Faster R-CNN and Mask R-CNN of tensorflow/tpu, in its checkpoints of TF1.

Both of its Mask R-CNNs: that of models/official/mask_rcnn calls its box head `box_head`, that of
models/official/detection `fast_rcnn_head`. Layouts and orders are ours, except for the classes:
channel 0, of every anchor in RetinaNet, is the background. The names inside NAS-FPN differ and are
not mapped.
"""

from tpudet.detection.modeling.foreign_detectors import (
    COCO_LABELS,
    ForeignDetector,
    Layers,
    Layout,
)

_CLASSES, _BOXES = "retinanet/class_net", "retinanet/box_net"


def _of_regions(name: str) -> tuple[str, ...]:
    return f"box_head/{name}", f"fast_rcnn_head/{name}"


def _norms(level: int) -> Layers:
    # Norms of the towers are each level's own.
    return (
        (
            rf"head/class_tower/norm(?P<number>\d)_level{level}",
            lambda n: (f"{_CLASSES}/class-{n}-{level}",),
        ),
        (
            rf"head/box_tower/norm(?P<number>\d)_level{level}",
            lambda n: (f"{_BOXES}/box-{n}-{level}",),
        ),
    )


_LAYERS: Layers = (
    (r"neck/lateral(?P<number>\d)", lambda n: (f"fpn/l{n}",)),
    (r"neck/conv(?P<number>[2-5])", lambda n: (f"fpn/post_hoc_d{n}",)),
    (r"neck/conv(?P<number>[67])", lambda n: (f"fpn/p{n}",)),
    (r"neck/norm(?P<number>\d)", lambda n: (f"fpn/p{n}-bn",)),
    (r"head/class_tower/conv(?P<number>\d)", lambda n: (f"{_CLASSES}/class-{n}",)),
    (r"head/box_tower/conv(?P<number>\d)", lambda n: (f"{_BOXES}/box-{n}",)),
    *(norm for level in range(2, 8) for norm in _norms(level)),
    (r"head/class_predict", lambda n: (f"{_CLASSES}/class-predict",)),
    (r"head/box_predict", lambda n: (f"{_BOXES}/box-predict",)),
    (r"rpn/conv0", lambda n: ("rpn_head/rpn",)),
    (r"rpn/object_predict", lambda n: ("rpn_head/rpn-class",)),
    (r"rpn/box_predict", lambda n: ("rpn_head/rpn-box",)),
    (r"box_head/tower/conv(?P<number>\d)", lambda n: (f"fast_rcnn_head/conv_{n}",)),
    (r"box_head/dense(?P<number>\d)", lambda n: _of_regions(f"fc{6 + n}")),
    (r"box_head/class_predict", lambda n: _of_regions("class-predict")),
    (r"box_head/box_predict", lambda n: _of_regions("box-predict")),
    (r"mask_head/tower/conv(?P<number>\d)", lambda n: (f"mask_head/mask-conv-l{n}",)),
    (r"mask_head/upsample", lambda n: ("mask_head/conv5-mask",)),
    (r"mask_head/mask_predict", lambda n: ("mask_head/mask_fcn_logits",)),
)

_LAYOUT = Layout(
    separator="/",
    variables={
        # The second kernel of a separable convolution has a name of its own.
        "kernel": ("kernel", "pointwise_kernel"),
        "depthwise_kernel": ("depthwise_kernel",),
        "bias": ("bias",),
        "gamma": ("gamma",),
        "beta": ("beta",),
        "moving_mean": ("moving_mean",),
        "moving_variance": ("moving_variance",),
    },
    outputs_first=False,
    columns_first=False,
)

TENSORFLOW = ForeignDetector(
    owner="tensorflow/tpu's detectors",
    mark=r"(^|/)(fpn/(l|post_hoc_d)\d|retinanet/(class|box)_net/(class|box)-\w+|rpn_head/rpn)/",
    layers=_LAYERS,
    anchor_classes=(f"{_CLASSES}/class-predict/bias",),
    region_classes=tuple(f"{layer}/bias" for layer in _of_regions("class-predict")),
    coco_classes=COCO_LABELS,
    background_first=True,
    extra_channels=(1,),
    ratios_first=False,
    delta_factors={},
    norm_mark=r"(^|/)(fpn/p\d-bn|fpn_cells|retinanet/class_net/class-0-\d)/",
    settings={
        "padding": "mean",
        "neck.symmetric_padding": False,
        "neck.coarse_relu": True,
        "anchors.layout": "centered",
        "anchors.aspect_ratios": (1.0, 2.0, 0.5),
        "roi_align.sampling_ratio": 1,
        "roi_align.aligned": False,
    },
    layout=_LAYOUT,
    remarks={
        r"(^|/)(rpn_head/rpn-?l?\d-bn|(fast_rcnn|mask)_head/(\w+_)?batch_normalization(_\d+)?)/": (
            "The file has norms behind layers of its RPN and heads that have none here, so that "
            "these layers compute something else."
        )
    },
)
