"""Finds neck and head weights in other libraries' checkpoints."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.detectron2_names import DETECTRON2
from tpudet.detection.modeling.foreign_detectors import (
    ForeignDetector,
    foreign_detector_part,
    match_classes,
)
from tpudet.detection.modeling.kerashub_names import KERASHUB, KERASHUB_V2
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mmdetection_names import MMDETECTION, MMDETECTION_ATSS
from tpudet.detection.modeling.tensorflow_names import TENSORFLOW
from tpudet.detection.modeling.torchvision_names import TORCHVISION
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.weights.load import OtherParts

# The first whose mark is in a file counts.
_DETECTORS = (
    TORCHVISION,
    DETECTRON2,
    MMDETECTION_ATSS,
    MMDETECTION,
    KERASHUB_V2,
    KERASHUB,
    TENSORFLOW,
)


class ForeignParts(NamedTuple):
    """The parts beside the backbone in a file, as `load_pretrained` wants them."""

    recipe: OtherParts
    notes: tuple[str, ...]  # sentences on classes, and on settings that the weights do not expect


def find_foreign_parts(
    model: RetinaNetConfig | MaskRCNNConfig,
    tensors: Mapping[str, np.ndarray],
    classes: Sequence[ClassEntry],
) -> ForeignParts:
    """Finds the name map for a detector's neck and heads.

    Own checkpoints need none, and backbones alone have none.

    Args:
        model: the detector.
        tensors: of the file, by name.
        classes: rows of classes.csv.
    """
    detector = _find_detector(tensors)
    if detector is None:
        return ForeignParts(lambda path, names: None, ())
    stored = match_classes(
        detector, tensors, classes, anchors_per_location=model.anchors.per_location
    )
    recipe = functools.partial(
        foreign_detector_part,
        detector=detector,
        min_level=model.min_level,
        anchors=model.anchors,
        roi_size=model.roi_align.box_size if isinstance(model, MaskRCNNConfig) else 0,
        classes=stored,
    )
    has_norms = any(re.search(detector.norm_mark, name) for name in tensors)
    settings = _other_settings(model, detector, has_norms=has_norms)
    remarks = [
        text
        for pattern, text in detector.remarks.items()
        if any(re.search(pattern, name) for name in tensors)
    ]
    return ForeignParts(recipe, (*stored.notes, *remarks, *settings))


def _find_detector(tensors: Mapping[str, np.ndarray]) -> ForeignDetector | None:
    for detector in _DETECTORS:
        if any(re.search(detector.mark, name) for name in tensors):
            return detector
    return None


def _other_settings(
    model: RetinaNetConfig | MaskRCNNConfig, detector: ForeignDetector, *, has_norms: bool
) -> Iterator[str]:
    if has_norms != (model.batch_norm is not None):
        has, wanted = ("null", "norms") if has_norms else ("set", "null")
        yield f"model.batch_norm is {has}; these weights of {detector.owner} expect {wanted}."
    idle = {f"neck.{key}" for key in model.idle_neck_keys}
    for key, wanted in detector.settings.items():
        if key in idle:
            continue
        has: Any = model
        for name in key.split("."):
            has = getattr(has, name, wanted)
        if has != wanted:
            yield (
                f"model.{key} is {_yaml(has)}; weights of {detector.owner} expect {_yaml(wanted)}."
            )


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "set" if hasattr(value, "__dataclass_fields__") else str(value)
