"""Name map for necks and heads of torchvision's RetinaNet, Faster R-CNN and Mask R-CNN.

Boxes are x before y there, kernels are [out, in, height, width], and class layers have a channel
for the background, 0, also in RetinaNet, where it is never trained. Before its version 0.13
convolutions had shorter names; published files have either.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.weights.name_maps.recipes import Recipe, from_torch_kernel
from tpudet.trainkit.weights.stored_weights import listed

# Labels 0 to 90 of its COCO weights; empty where COCO has none.
COCO_NAMES = tuple(
    """,person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,,
stop sign,parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,,backpack,
umbrella,,,handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,
skateboard,surfboard,tennis racket,bottle,,wine glass,cup,fork,knife,spoon,bowl,banana,apple,
sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,,dining table,
,,toilet,,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,,book,
clock,vase,scissors,teddy bear,hair drier,toothbrush""".replace("\n", "").split(",")
)

_HEAD, _BOXES, _MASKS = "head.classification_head", "head.regression_head", "roi_heads.mask_head"

# From our layers to theirs, the present name first, then that of older versions. n is the number
# in our path; for lateral convolutions and those of levels up to 5, counted from the finest level.
_LAYERS: Sequence[tuple[str, Callable[[int], tuple[str, ...]]]] = (
    (r"neck/lateral(\d)", lambda n: _spelled("backbone.fpn.inner_blocks", n, n)),
    (r"neck/conv([2-5])", lambda n: _spelled("backbone.fpn.layer_blocks", n, n)),
    (r"neck/conv([67])", lambda n: (f"backbone.fpn.extra_blocks.p{n}",)),
    (r"head/class_tower/conv(\d)", lambda n: _spelled(f"{_HEAD}.conv", n, 2 * n)),
    (r"head/box_tower/conv(\d)", lambda n: _spelled(f"{_BOXES}.conv", n, 2 * n)),
    (r"head/class_tower/norm(\d)", lambda n: (f"{_HEAD}.conv.{n}.1",)),
    (r"head/box_tower/norm(\d)", lambda n: (f"{_BOXES}.conv.{n}.1",)),
    (r"head/class_predict", lambda n: (f"{_HEAD}.cls_logits",)),
    (r"head/box_predict", lambda n: (f"{_BOXES}.bbox_reg",)),
    (r"rpn/conv(\d)", lambda n: (f"rpn.head.conv.{n}.0", "rpn.head.conv")),
    (r"rpn/object_predict", lambda n: ("rpn.head.cls_logits",)),
    (r"rpn/box_predict", lambda n: ("rpn.head.bbox_pred",)),
    (r"box_head/dense(\d)", lambda n: (f"roi_heads.box_head.fc{6 + n}",)),
    (r"box_head/class_predict", lambda n: ("roi_heads.box_predictor.cls_score",)),
    (r"box_head/box_predict", lambda n: ("roi_heads.box_predictor.bbox_pred",)),
    (r"mask_head/tower/conv(\d)", lambda n: (f"{_MASKS}.{n}.0", f"{_MASKS}.mask_fcn{n + 1}")),
    (r"mask_head/upsample", lambda n: ("roi_heads.mask_predictor.conv5_mask",)),
    (r"mask_head/mask_predict", lambda n: ("roi_heads.mask_predictor.mask_fcn_logits",)),
)
_PARTS = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}


def _spelled(place: str, number: int, before: int) -> tuple[str, ...]:
    return f"{place}.{number}.0", f"{place}.{before}"


def is_torchvision_detector(names: Collection[str]) -> bool:
    """Whether a file holds a detector of torchvision, by the names of its tensors."""
    return any(re.search(r"(^|\.)backbone\.fpn\.inner_blocks\.0\.", name) for name in names)


class StoredClasses(NamedTuple):
    """Where the class layers of a file have the weights of each of our classes."""

    num_channels: int  # of the class layers, with that of the background
    channels: tuple[int | None, ...]  # by class of the model, from the first; None: it has none
    notes: tuple[str, ...]  # sentences on what was found


def match_classes(
    tensors: Mapping[str, np.ndarray], classes: Sequence[ClassEntry], *, anchors_per_location: int
) -> StoredClasses:
    """Finds our classes among those of a file.

    In a file with COCO's 91 labels by name, without regard to case, blanks and underscores. Files
    do not name the classes of others: those with as many as ours have them in our order.

    Args:
        tensors: of the file.
        classes: rows of classes.csv.
        anchors_per_location: of the model, for the class layer of a RetinaNet.
    """
    count = _count_channels(tensors, anchors_per_location)
    wanted = len(classes)
    if count == len(COCO_NAMES):
        labels = {_plain(name): label for label, name in enumerate(COCO_NAMES) if name}
        channels = tuple(labels.get(_plain(entry.name)) for entry in classes)
        fresh = [e.name for e, c in zip(classes, channels, strict=True) if c is None]
        start = f"; {listed(fresh)} start fresh" if fresh else ""
        note = (
            f"{wanted - len(fresh)} of {wanted} classes have the names of COCO's and take their "
            f"weights{start}."
        )
        return StoredClasses(count, channels, (note,))
    if count in (wanted, wanted + 1):
        first = count - wanted
        note = f"The file has {wanted} classes, which are taken in the order of classes.csv."
        return StoredClasses(count, tuple(range(first, first + wanted)), (note,))
    note = (
        f"The file has {count - 1} classes, which it does not name, and classes.csv has {wanted}: "
        "the class layers start fresh."
    )
    return StoredClasses(count, (None,) * wanted, (note,))


def _count_channels(tensors: Mapping[str, np.ndarray], anchors_per_location: int) -> int:
    for name in tensors:
        if name.endswith("head.classification_head.cls_logits.bias"):
            return len(tensors[name]) // anchors_per_location
        if name.endswith("roi_heads.box_predictor.cls_score.bias"):
            return len(tensors[name])
    return 0


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name).strip().casefold()


def torchvision_detector_part(
    path: str, names: Collection[str], *, min_level: int, roi_size: int, classes: StoredClasses
) -> Recipe | None:
    """Returns how to make a variable of neck or head from a file of torchvision's detectors.

    Args:
        path: Of our variable, such as "head/class_tower/conv0/kernel".
        names: In the file.
        min_level: Finest level of the pyramid.
        roi_size: Bins along each side of the regions that the box head sees.
        classes: From `match_classes`.

    Returns:
        The recipe; None for a part that those detectors do not have, and for class layers without
        any class of the model.
    """
    layer, _, part = path.rpartition("/")
    for pattern, spellings in _LAYERS:
        match = re.fullmatch(pattern, layer)
        if match is None or part not in _PARTS:
            continue
        number = int(match[1]) if match.groups() else 0
        if re.match(r"neck/(lateral|conv[2-5])", layer):
            number -= min_level
        stored = [f"{name}.{_PARTS[part]}" for name in spellings(number)]
        name = next((name for name in stored if name in names), stored[0])
        convert = _conversion(layer, part, roi_size, classes)
        return convert and Recipe((name,), convert)
    return None


def _conversion(
    layer: str, part: str, roi_size: int, classes: StoredClasses
) -> Callable[[np.ndarray], np.ndarray] | None:
    def turned(values: np.ndarray) -> np.ndarray:  # outputs last
        if part != "kernel":
            return values
        if layer == "box_head/dense0":  # it sees channels before rows and columns there
            values = values.reshape(len(values), -1, roi_size, roi_size)
            return values.transpose(2, 3, 1, 0).reshape(-1, len(values))
        return from_torch_kernel(values) if values.ndim == 4 else values.T

    channels = classes.channels
    if layer in ("head/class_predict", "box_head/class_predict", "box_head/box_predict") or (
        layer == "mask_head/mask_predict"
    ):
        if not any(channel is not None for channel in channels):
            return None
        if layer == "box_head/class_predict":
            channels = (0, *channels)  # ours has the background too
        numbers = 4 if layer == "box_head/box_predict" else 1
        return lambda values: _of_classes(turned(values), classes.num_channels, channels, numbers)
    if layer in ("head/box_predict", "rpn/box_predict"):
        return lambda values: _rows_before_columns(turned(values))
    return turned


def _of_classes(
    values: np.ndarray, count: int, channels: Sequence[int | None], numbers: int
) -> np.ndarray:
    """Picks classes from [..., anchors * count * numbers]; those without a channel are masked."""
    start = values.shape[:-1]
    values = values.reshape(*start, -1, count, numbers)
    picked = values[..., [channel or 0 for channel in channels], :]
    if numbers == 4:
        picked = _rows_before_columns(picked)
    missing = np.array([channel is None for channel in channels])
    if missing.any():
        picked = np.ma.array(picked, mask=np.broadcast_to(missing[:, None], picked.shape))
    return picked.reshape(*start, -1)


def _rows_before_columns(values: np.ndarray) -> np.ndarray:
    # [..., 4 n] of x y width height to y x height width
    return values.reshape(*values.shape[:-1], -1, 4)[..., [1, 0, 3, 2]].reshape(values.shape)
