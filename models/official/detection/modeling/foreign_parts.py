"""Finds necks and heads in weights of other origins: tensorflow/tpu's and torchvision's."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.tensorflow_names import tensorflow_detector_part
from tpudet.detection.modeling.torchvision_names import (
    is_torchvision_detector,
    match_classes,
    torchvision_detector_part,
)
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.weights.load import OtherParts

# Of torchvision's detectors: what must be so for them to give the same detections here.
_TORCHVISION_SETTINGS: Mapping[str, Any] = {
    "padding": "mean",
    "batch_norm": None,
    "neck.kind": "fpn",
    "neck.symmetric_padding": True,
    "anchors.layout": "torchvision",
    "anchors.aspect_ratios": (2.0, 1.0, 0.5),
    "roi_align.aligned": False,
}


class ForeignParts(NamedTuple):
    """The parts beside the backbone in a file, as `load_pretrained` wants them."""

    recipe: OtherParts
    notes: tuple[str, ...]  # sentences on classes, and on settings that the weights do not expect


def find_foreign_parts(
    model: RetinaNetConfig | MaskRCNNConfig,
    tensors: Mapping[str, np.ndarray],
    classes: Sequence[ClassEntry],
) -> ForeignParts:
    """Finds the name map for a detector's neck and heads; own checkpoints need none.

    Args:
        model: the detector.
        tensors: of the file, by name.
        classes: rows of classes.csv.
    """
    anchors_per_location = model.anchors.per_location
    if not is_torchvision_detector(tensors):
        recipe = functools.partial(
            tensorflow_detector_part, anchors_per_location=anchors_per_location
        )
        return ForeignParts(recipe, ())
    stored = match_classes(tensors, classes, anchors_per_location=anchors_per_location)
    recipe = functools.partial(
        torchvision_detector_part,
        min_level=model.min_level,
        roi_size=model.roi_align.box_size if isinstance(model, MaskRCNNConfig) else 0,
        classes=stored,
    )
    return ForeignParts(recipe, (*stored.notes, *_other_settings(model)))


def _other_settings(model: RetinaNetConfig | MaskRCNNConfig) -> Iterator[str]:
    for key, wanted in _TORCHVISION_SETTINGS.items():
        has: Any = model
        for name in key.split("."):
            has = getattr(has, name, wanted)
        if has != wanted:
            yield (
                f"model.{key} is {_yaml(has)}; weights of torchvision's detectors expect "
                f"{_yaml(wanted)}."
            )


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "set" if hasattr(value, "__dataclass_fields__") else str(value)
