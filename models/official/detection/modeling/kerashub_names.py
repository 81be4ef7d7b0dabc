"""Names of KerasHub's RetinaNet: torchvision's network in the layouts of Keras.

Both presets are torchvision's weights for COCO, with its 91 labels. The second one has group norms
in its heads, of Keras's epsilon. Strided convolutions of the pyramid pad bottom and right first.
"""

from tpudet.detection.modeling.foreign_detectors import (
    COCO_LABELS,
    ForeignDetector,
    Layers,
    Layout,
)

_CLASSES, _BOXES = "classification_head", "box_head"
_LATERALS, _OUTPUTS = "fpn/lateral_conv_layers", "fpn/output_conv_layers"

_LAYERS: Layers = (
    (r"neck/lateral(?P<number>\d)", lambda n: (f"{_LATERALS}/lateral_conv_P{n}",)),
    (r"neck/conv(?P<number>[2-5])", lambda n: (f"{_OUTPUTS}/output_conv_P{n}",)),
    (r"neck/conv(?P<number>[67])", lambda n: (f"{_OUTPUTS}/coarser_P{n}",)),
    (r"head/class_tower/conv(?P<number>\d)", lambda n: (f"{_CLASSES}/conv_layers/conv2d_{n}",)),
    (r"head/box_tower/conv(?P<number>\d)", lambda n: (f"{_BOXES}/conv_layers/conv2d_{n}",)),
    (
        r"head/class_tower/norm(?P<number>\d)",
        lambda n: (f"{_CLASSES}/group_norm_layers/group_norm_{n}",),
    ),
    (
        r"head/box_tower/norm(?P<number>\d)",
        lambda n: (f"{_BOXES}/group_norm_layers/group_norm_{n}",),
    ),
    (r"head/class_predict", lambda n: (f"{_CLASSES}/logits_layer",)),
    (r"head/box_predict", lambda n: (f"{_BOXES}/logits_layer",)),
)

# Files number the variables of layers whose groups do not say their kind.
_LAYOUT = Layout(
    separator="/",
    variables={
        "kernel": ("kernel", "0"),
        "bias": ("bias", "1"),
        "gamma": ("gamma", "0"),
        "beta": ("beta", "1"),
    },
    outputs_first=False,
    columns_first=True,
)

KERASHUB = ForeignDetector(
    owner="KerasHub's RetinaNet",
    mark=r"(^|/)fpn/lateral_conv_layers/lateral_conv_P\d/",
    layers=_LAYERS,
    anchor_classes=(f"{_CLASSES}/logits_layer/bias", f"{_CLASSES}/logits_layer/1"),
    region_classes=(),
    coco_classes=COCO_LABELS,
    background_first=False,
    extra_channels=(0,),
    ratios_first=False,  # as torchvision's
    delta_factors={},
    norm_mark=r"(^|/)fpn/lateral_batch_norm_layers/",
    settings={
        "padding": "black",
        "neck.kind": "fpn",
        "neck.symmetric_padding": False,
        "neck.coarse_relu": True,
        "anchors.layout": "torchvision",
        "anchors.aspect_ratios": (2.0, 1.0, 0.5),
        "postprocess.class_agnostic": True,
    },
    layout=_LAYOUT,
    headless=(
        "The file has no heads, which KerasHub keeps in task.weights.h5 beside model.weights.h5: "
        "give the folder of the preset as the path, or they start fresh."
    ),
)
KERASHUB_V2 = KERASHUB._replace(
    mark=r"(^|/)classification_head/group_norm_layers/",
    settings={**KERASHUB.settings, "head.norm_epsilon": 1e-3},
)
