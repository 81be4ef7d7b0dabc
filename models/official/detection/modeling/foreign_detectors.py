"""Converts the neck and head weights of other libraries' detectors.

torchvision, Detectron2 and MMDetection have the layouts of PyTorch: kernels are [out, in, height,
width], and regions are flattened with their channels first. KerasHub and tensorflow/tpu have ours.
Libraries differ in names, in where class layers have the background, in the order of a location's
anchors, and all but tensorflow/tpu predict x before y.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.modeling.config import AnchorConfig
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import listing
from tpudet.trainkit.weights.name_maps.recipes import Recipe, from_torch_kernel

# A pattern for our layers, and their names, those of newer files first. A group `level` is given as
# the number of the level from the pyramid's finest, a group `number` as it is.
Layers = Sequence[tuple[str, Callable[[int], tuple[str, ...]]]]

# Labels 0 to 90 of COCO, as torchvision counts them; empty where COCO has none.
COCO_LABELS = tuple(
    """,person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,,
stop sign,parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,,backpack,
umbrella,,,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,
skateboard,surfboard,tennis racket,bottle,,wine glass,cup,fork,knife,spoon,bowl,banana,apple,
sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,,dining table,
,,toilet,,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,,book,
clock,vase,scissors,teddy bear,hair drier,toothbrush""".replace("\n", "").split(",")
)
COCO_CLASSES = tuple(name for name in COCO_LABELS if name)  # the 80 that it has, in that order


class Layout(NamedTuple):
    """How a library stores the variables of a layer."""

    separator: str  # between the layer's name and the variable's
    variables: Mapping[str, tuple[str, ...]]  # names of a variable there, by its name here
    outputs_first: bool  # of kernels; ours have their outputs last
    columns_first: bool  # of predicted boxes, whether they are x y width height


TORCH = Layout(
    separator=".",
    variables={
        "kernel": ("weight",),
        "bias": ("bias",),
        "gamma": ("weight",),
        "beta": ("bias",),
        "moving_mean": ("running_mean",),
        "moving_variance": ("running_var",),
        "scale": ("scale",),
    },
    outputs_first=True,
    columns_first=True,
)


class ForeignDetector(NamedTuple):
    """How a library names the layers of its detectors, and what a detector here must match."""

    owner: str  # for messages, such as "torchvision's detectors"
    mark: str  # a pattern of names that no other library's detectors have
    layers: Layers
    anchor_classes: tuple[str, ...]  # endings of the biases of its class layers: of one stage
    region_classes: tuple[str, ...]  # the same of two stages
    coco_classes: tuple[str, ...]  # COCO's names by channel of the class layers
    # Whether class layers have the background as their first channel; otherwise only that of
    # regions has it, as its last.
    background_first: bool
    # By how many channels class layers may exceed the classes of a file that does not name them.
    extra_channels: tuple[int, ...]
    ratios_first: bool  # of a location's anchors, where ours have scales first
    # Of predicted y, x, height, width, by ending of the layer's name.
    delta_factors: Mapping[str, tuple[float, ...]]
    norm_mark: str  # a pattern of the names of norms in its pyramids, which not all have
    settings: Mapping[str, Any]  # keys of our model, and the values that give the same detections
    layout: Layout = TORCH
    headless: str = ""  # a sentence on a file without class layers
    remarks: Mapping[str, str] = MappingProxyType({})  # sentences by pattern of a file's names


class StoredClasses(NamedTuple):
    """Where the class layers of a file have the weights of each of our classes."""

    num_channels: int  # of the class layers, except that of regions, which has the background too
    background: int  # its channel in the class layer of regions
    channels: tuple[int | None, ...]  # by class of the model, from the first; None: it has none
    notes: tuple[str, ...]  # sentences on what was found


def match_classes(
    detector: ForeignDetector,
    tensors: Mapping[str, np.ndarray],
    classes: Sequence[ClassEntry],
    *,
    anchors_per_location: int,
) -> StoredClasses:
    """Finds our classes among those of a file.

    In a file with COCO's classes by name, without regard to case, blanks and underscores. Files
    with other classes do not name them: those with as many as ours have them in our order.

    Args:
        detector: whose file it is.
        tensors: of the file.
        classes: rows of classes.csv.
        anchors_per_location: of the model; a RetinaNet's class layer fits the same number only.
    """
    anchors = _count_anchors(detector, tensors) or anchors_per_location
    count = _count_channels(detector, tensors, anchors)
    background = 0 if detector.background_first else count
    wanted = len(classes)
    if anchors != anchors_per_location:
        note = (
            f"The file has {anchors} anchors per location, and model.anchors has "
            f"{anchors_per_location}: the class layers start fresh."
        )
        return StoredClasses(count, background, (None,) * wanted, (note,))
    if count == len(detector.coco_classes):
        labels = {_plain(name): label for label, name in enumerate(detector.coco_classes) if name}
        channels = tuple(labels.get(_plain(entry.name)) for entry in classes)
        fresh = [e.name for e, c in zip(classes, channels, strict=True) if c is None]
        start = f"; {listing(fresh, 5)} start fresh" if fresh else ""
        note = (
            f"{wanted - len(fresh)} of {wanted} classes have the names of COCO's and take their "
            f"weights{start}."
        )
        return StoredClasses(count, background, channels, (note,))
    if count - wanted in detector.extra_channels:
        channels = tuple(range(count - wanted, count))
        note = f"The file has {wanted} classes, which are taken in the order of classes.csv."
        return StoredClasses(count, background, channels, (note,))
    if count == 0 and detector.headless:
        return StoredClasses(0, 0, (None,) * wanted, (detector.headless,))
    note = (
        f"The file has {count - detector.background_first} classes, which it does not name, and "
        f"classes.csv has {wanted}: the class layers start fresh."
    )
    return StoredClasses(count, background, (None,) * wanted, (note,))


def _count_anchors(detector: ForeignDetector, tensors: Mapping[str, np.ndarray]) -> int | None:
    """The anchors per location of a RetinaNet; None of others."""
    endings = tuple(
        f"{layer}{detector.layout.separator}{bias}"
        for pattern, spellings in detector.layers
        if re.fullmatch(pattern, "head/box_predict")
        for layer in spellings(0)
        for bias in detector.layout.variables["bias"]
    )
    return next((len(tensors[name]) // 4 for name in tensors if name.endswith(endings)), None)


def _count_channels(
    detector: ForeignDetector, tensors: Mapping[str, np.ndarray], anchors_per_location: int
) -> int:
    for name in tensors:
        if name.endswith(detector.anchor_classes):
            return len(tensors[name]) // anchors_per_location
        if name.endswith(detector.region_classes):
            return len(tensors[name]) - (not detector.background_first)
    return 0


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def foreign_detector_part(
    path: str,
    names: Collection[str],
    *,
    detector: ForeignDetector,
    min_level: int,
    anchors: AnchorConfig,
    roi_size: int,
    classes: StoredClasses,
) -> Recipe | None:
    """Returns how to make a variable of neck or head from a file of a library's detectors.

    Args:
        path: of our variable, such as "head/class_tower/conv0/kernel".
        names: in the file.
        detector: whose file it is.
        min_level: finest level of the pyramid.
        anchors: of the model.
        roi_size: bins along each side of the regions that the box head sees.
        classes: from `match_classes`.

    Returns:
        The recipe; None for a part that those detectors do not have, and for class layers without
        any class of the model.
    """
    layer, _, variable = path.rpartition("/")
    for pattern, spellings in detector.layers:
        match = re.fullmatch(pattern, layer)
        if match is None or variable not in detector.layout.variables:
            continue
        groups = match.groupdict()
        number = int(groups["level"]) - min_level if "level" in groups else 0
        number = int(groups["number"]) if "number" in groups else number
        stored = [
            f"{name}{detector.layout.separator}{spelled}"
            for name in spellings(number)
            for spelled in detector.layout.variables[variable]
        ]
        name = next((name for name in stored if name in names), stored[0])
        convert = _conversion(layer, variable, roi_size, classes, detector.layout)
        if convert is None:
            return None
        if layer in ("head/class_predict", "head/box_predict"):
            convert = _for_anchors(convert, name, detector, anchors)
        return Recipe((name,), convert)
    return None


def _conversion(
    layer: str, variable: str, roi_size: int, classes: StoredClasses, layout: Layout
) -> Callable[[np.ndarray], np.ndarray] | None:
    def turned(values: np.ndarray) -> np.ndarray:  # outputs last
        if variable != "kernel" or not layout.outputs_first:
            return values
        if layer == "box_head/dense0":  # it sees channels before rows and columns there
            values = values.reshape(len(values), -1, roi_size, roi_size)
            return values.transpose(2, 3, 1, 0).reshape(-1, len(values))
        return from_torch_kernel(values) if values.ndim == 4 else values.T

    if variable == "depthwise_kernel":  # of a separable convolution: its channels are the inputs
        return turned
    count, background, channels, _ = classes
    if layer in ("head/class_predict", "box_head/class_predict", "box_head/box_predict") or (
        layer == "mask_head/mask_predict"
    ):
        if not any(channel is not None for channel in channels):
            return None
        if layer == "box_head/class_predict":  # ours has the background too, first
            count, channels = max(count, background + 1), (background, *channels)
        numbers = 4 if layer == "box_head/box_predict" else 1
        turns = numbers == 4 and layout.columns_first

        def of_classes(values: np.ndarray) -> np.ndarray:
            values = turned(values)
            if numbers == 4 and values.shape[-1] == 4:  # boxes that all classes share
                return _of_classes(values, 1, (0,), numbers, turns=turns)
            return _of_classes(values, count, channels, numbers, turns=turns)

        return of_classes
    if layer in ("head/box_predict", "rpn/box_predict") and layout.columns_first:
        return lambda values: _rows_before_columns(turned(values))
    return turned


def _of_classes(
    values: np.ndarray,
    count: int,
    channels: Sequence[int | None],
    numbers: int,
    *,
    turns: bool,
) -> np.ndarray:
    """Picks classes from [..., anchors * count * numbers]; those without a channel are masked.

    `turns`: the numbers are x y width height.
    """
    start = values.shape[:-1]
    values = values.reshape(*start, -1, count, numbers)
    picked = values[..., [channel or 0 for channel in channels], :]
    if turns:
        picked = _rows_before_columns(picked)
    missing = np.array([channel is None for channel in channels])
    if missing.any():
        picked = np.ma.array(picked, mask=np.broadcast_to(missing[:, None], picked.shape))
    return picked.reshape(*start, -1)


def _rows_before_columns(values: np.ndarray) -> np.ndarray:
    # [..., 4 n] of x y width height to y x height width
    return values.reshape(*values.shape[:-1], -1, 4)[..., [1, 0, 3, 2]].reshape(values.shape)


def _for_anchors(
    convert: Callable[[np.ndarray], np.ndarray],
    name: str,
    detector: ForeignDetector,
    anchors: AnchorConfig,
) -> Callable[[np.ndarray], np.ndarray]:
    """Brings the outputs of each location into the order and the units of our anchors."""
    layer = name.rpartition(".")[0]
    factors = next((f for end, f in detector.delta_factors.items() if layer.endswith(end)), None)

    def converted(values: np.ndarray) -> np.ndarray:
        values = convert(values)
        start = values.shape[:-1]
        if detector.ratios_first:
            num_ratios = len(anchors.aspect_ratios)
            num_scales = anchors.per_location // num_ratios
            by_ratio = values.reshape(*start, num_ratios, num_scales, -1)
            values = by_ratio.swapaxes(-3, -2).reshape(*start, -1)
        if factors is not None:
            values = (values.reshape(*start, -1, 4) * np.asarray(factors, np.float32)).reshape(
                *start, -1
            )
        return values

    return converted
