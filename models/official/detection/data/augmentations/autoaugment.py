"""AutoAugment for detection (arXiv 1906.11172): one sub-policy per image, from a learnt table.

Strengths are those of the authors' code (see `operation_amount`), with these deviations:

- it is applied after the image was scaled, cropped and mirrored; the authors apply it first, to
  the original, so objects moved out of the image are outside every crop;
- the authors' distances in pixels suit COCO, whose images have a longer side of 640; here they
  scale with the longer side, so the effect on a canvas of 320 or 1280 is the same;
- operations that Pillow has equal Pillow's (the authors' contrast turns large images white);
- a box that leaves the image is removed; in the authors' code it comes back with a twentieth of the
  image's side;
- 0 bits of `posterize`, a black image, count as 1, which is the authors' effective result.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.data.augmentations.rand_augment import (
    Operation,
    OperationSequence,
    apply_sequence,
)
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.types import Tensor


class PolicyStep(NamedTuple):
    """One operation of a sub-policy."""

    name: str  # a key of `rand_augment.CHANGES`
    probability: float  # in boxes, a third of it applies, to each box by itself
    level: int  # 0..10; `operation_amount` says what it means
    in_boxes: bool = False  # change the inside of boxes instead of the whole image


SubPolicy = tuple[PolicyStep, ...]
PolicyName = Literal["v0", "v1", "v2", "v3", "test"]


def _step(name: str, probability: float, level: int) -> PolicyStep:
    return PolicyStep(name, probability, level)


def _in_boxes(name: str, probability: float, level: int) -> PolicyStep:
    return PolicyStep(name, probability, level, in_boxes=True)


_V0: tuple[SubPolicy, ...] = (
    (_step("translate_x", 0.6, 4), _step("equalize", 0.8, 10)),
    (_in_boxes("translate_y", 0.2, 2), _step("cutout", 0.8, 8)),
    (_step("sharpness", 0.0, 8), _step("shear_x", 0.4, 0)),
    (_step("shear_y", 1.0, 2), _in_boxes("translate_y", 0.6, 6)),
    (_step("rotate", 0.6, 10), _step("color", 1.0, 6)),
)

_V1: tuple[SubPolicy, ...] = (
    *_V0,
    (_step("color", 0.0, 0), _in_boxes("shear_x", 0.8, 4)),
    (_in_boxes("shear_y", 0.8, 2), _in_boxes("flip", 0.0, 10)),
    (_step("equalize", 0.6, 10), _step("translate_x", 0.2, 2)),
    (_step("color", 1.0, 10), _in_boxes("translate_y", 0.4, 6)),
    (_step("rotate", 0.8, 10), _step("contrast", 0.0, 10)),
    (_step("cutout", 0.2, 2), _step("brightness", 0.8, 10)),
    (_step("color", 1.0, 6), _step("equalize", 1.0, 2)),
    (_in_boxes("cutout", 0.4, 6), _in_boxes("translate_y", 0.8, 2)),
    (_step("color", 0.2, 8), _step("rotate", 0.8, 10)),
    (_step("sharpness", 0.4, 4), _in_boxes("translate_y", 0.0, 4)),
    (_step("sharpness", 1.0, 4), _step("solarize_add", 0.4, 4)),
    (_step("rotate", 1.0, 8), _step("sharpness", 0.2, 8)),
    (_step("shear_y", 0.6, 10), _in_boxes("equalize", 0.6, 8)),
    (_step("shear_x", 0.2, 6), _in_boxes("translate_y", 0.2, 10)),
    (_step("solarize_add", 0.6, 8), _step("brightness", 0.8, 10)),
)

_V2: tuple[SubPolicy, ...] = (
    (_step("color", 0.0, 6), _step("cutout", 0.6, 8), _step("sharpness", 0.4, 8)),
    (_step("rotate", 0.4, 8), _step("sharpness", 0.4, 2), _step("rotate", 0.8, 10)),
    (_step("translate_y", 1.0, 8), _step("auto_contrast", 0.8, 2)),
    (_step("auto_contrast", 0.4, 6), _step("shear_x", 0.8, 8), _step("brightness", 0.0, 10)),
    (_step("solarize_add", 0.2, 6), _step("contrast", 0.0, 10), _step("auto_contrast", 0.6, 0)),
    (_step("cutout", 0.2, 0), _step("solarize", 0.8, 8), _step("color", 1.0, 4)),
    (_step("translate_y", 0.0, 4), _step("equalize", 0.6, 8), _step("solarize", 0.0, 10)),
    (_step("translate_y", 0.2, 2), _step("shear_y", 0.8, 8), _step("rotate", 0.8, 8)),
    (_step("cutout", 0.8, 8), _step("brightness", 0.8, 8), _step("cutout", 0.2, 2)),
    (_step("color", 0.8, 4), _step("translate_y", 1.0, 6), _step("rotate", 0.6, 6)),
    (_step("rotate", 0.6, 10), _step("box_cutout", 1.0, 4), _step("cutout", 0.2, 8)),
    (_step("rotate", 0.0, 0), _step("equalize", 0.6, 6), _step("shear_y", 0.6, 8)),
    (_step("brightness", 0.8, 8), _step("auto_contrast", 0.4, 2), _step("brightness", 0.2, 2)),
    (_step("translate_y", 0.4, 8), _step("solarize", 0.4, 6), _step("solarize_add", 0.2, 10)),
    (_step("contrast", 1.0, 10), _step("solarize_add", 0.2, 8), _step("equalize", 0.2, 4)),
)

_V3: tuple[SubPolicy, ...] = (
    (_step("posterize", 0.8, 2), _step("translate_x", 1.0, 8)),
    (_step("box_cutout", 0.2, 10), _step("sharpness", 1.0, 8)),
    (_step("rotate", 0.6, 8), _step("rotate", 0.8, 10)),
    (_step("equalize", 0.8, 10), _step("auto_contrast", 0.2, 10)),
    (_step("solarize_add", 0.2, 2), _step("translate_y", 0.2, 8)),
    (_step("sharpness", 0.0, 2), _step("color", 0.4, 8)),
    (_step("equalize", 1.0, 8), _step("translate_y", 1.0, 8)),
    (_step("posterize", 0.6, 2), _step("rotate", 0.0, 10)),
    (_step("auto_contrast", 0.6, 0), _step("rotate", 1.0, 6)),
    (_step("equalize", 0.0, 4), _step("cutout", 0.8, 10)),
    (_step("brightness", 1.0, 2), _step("translate_y", 1.0, 6)),
    (_step("contrast", 0.0, 2), _step("shear_y", 0.8, 0)),
    (_step("auto_contrast", 0.8, 10), _step("contrast", 0.2, 10)),
    (_step("rotate", 1.0, 10), _step("cutout", 1.0, 10)),
    (_step("solarize_add", 0.8, 6), _step("equalize", 0.8, 8)),
)

POLICIES: Mapping[PolicyName, tuple[SubPolicy, ...]] = {
    "v0": _V0,
    "v1": _V1,
    "v2": _V2,
    "v3": _V3,
    "test": ((_step("translate_x", 1.0, 4), _step("equalize", 1.0, 10)),),
}


def apply_autoaugment(
    annotated: AnnotatedImage, seed: Tensor, *, policy: PolicyName
) -> AnnotatedImage:
    """Draws one sub-policy and applies it; sizes and types stay, nothing else is executed.

    Args:
        annotated: the image, scaled but not padded, its boxes and masks.
        seed: [2] int, which determines all choices.
        policy: name of a table.
    """
    return apply_sub_policy(annotated, POLICIES[policy], seed)


def apply_sub_policy(
    annotated: AnnotatedImage, sub_policies: Sequence[SubPolicy], seed: Tensor
) -> AnnotatedImage:
    """Draws one of the sub-policies, all equally likely, and applies it; `seed` [2]."""
    operations = sorted({_operation(step) for steps in sub_policies for step in steps})
    choice_seed, seed = tf.unstack(tf.random.split(seed, 2))
    row = tf.random.stateless_uniform(
        [], choice_seed, maxval=len(sub_policies), dtype=tf.int32, alg="philox"
    )
    tables = _tables(sub_policies, operations)
    drawn = OperationSequence(*(tf.constant(table)[row] for table in tables))
    return apply_sequence(annotated, operations, drawn, seed)


def operation_amount(step: PolicyStep) -> float:
    """Returns the amount of the step's operation at its level, see `rand_augment.Change`."""
    strength = step.level / 10.0
    distance = (120.0 if step.in_boxes else 250.0) * strength
    factor = 0.1 + 1.8 * strength
    amounts = {
        "translate_x": distance,
        "translate_y": distance,
        "cutout": float(int((50.0 if step.in_boxes else 100.0) * strength)),
        "box_cutout": 0.75 * strength,
        "shear_x": 0.3 * strength,
        "shear_y": 0.3 * strength,
        "rotate": 30.0 * strength,
        "posterize": float(max(1, int(4 * strength))),
        "solarize": float(int(256 * strength)),
        "solarize_add": float(int(110 * strength)),
        "brightness": factor,
        "color": factor,
        "contrast": factor,
        "sharpness": factor,
    }
    return amounts.get(step.name, 0.0)


def _operation(step: PolicyStep) -> Operation:
    return Operation(step.name, step.in_boxes)


def _tables(
    sub_policies: Sequence[SubPolicy], operations: Sequence[Operation]
) -> OperationSequence:
    """Returns the sub-policies as [P, k] in NumPy; shorter ones end with probabilities of 0."""
    shape = (len(sub_policies), max(map(len, sub_policies)))
    tables = OperationSequence(np.zeros(shape, np.int32), *np.zeros((2, *shape), np.float32))
    for row, steps in enumerate(sub_policies):
        for column, step in enumerate(steps):
            tables.indices[row, column] = operations.index(_operation(step))
            tables.amounts[row, column] = operation_amount(step)
            share = 1.0 / 3.0 if step.in_boxes else 1.0
            tables.probabilities[row, column] = step.probability * share
    return tables
