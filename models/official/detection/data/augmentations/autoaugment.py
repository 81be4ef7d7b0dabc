"""AutoAugment for detection: one sub-policy, drawn from a learnt table, for each picture.

Strengths are those of the authors' code (`amount_of` lists them), with these differences:

- it comes after the picture was scaled, cropped and mirrored; there it was the first of all, on the
  original, so what moved out of the picture was out of every crop;
- distances in pixels were meant for COCO, whose pictures have a longer side of 640; here they grow
  and shrink with the longer side, so a canvas of 320 or 1280 shows the same picture;
- operations that Pillow has are Pillow's (contrast turned large pictures white there);
- a box that leaves the picture is gone; there it came back with a twentieth of the picture's side;
- 0 bits of `posterize`, a black picture, count as 1, which is what came out there.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.data.augmentations.rand_augment import Operation, Steps, carry_out
from tpudet.detection.data.sample import Scene
from tpudet.trainkit.types import Tensor


class Step(NamedTuple):
    """One operation of a sub-policy."""

    name: str  # a key of scene_operations.CHANGES
    probability: float  # of a step in boxes a third of it, for each box by itself
    level: int  # 0..10; `autoaugment.amount_of` says what it means
    in_boxes: bool = False  # change what lies within boxes instead of the picture


SubPolicy = tuple[Step, ...]
PolicyName = Literal["v0", "v1", "v2", "v3", "test"]


def _only(name: str, probability: float, level: int) -> Step:
    return Step(name, probability, level, in_boxes=True)


_V0: tuple[SubPolicy, ...] = (
    (Step("translate_x", 0.6, 4), Step("equalize", 0.8, 10)),
    (_only("translate_y", 0.2, 2), Step("cutout", 0.8, 8)),
    (Step("sharpness", 0.0, 8), Step("shear_x", 0.4, 0)),
    (Step("shear_y", 1.0, 2), _only("translate_y", 0.6, 6)),
    (Step("rotate", 0.6, 10), Step("color", 1.0, 6)),
)

_V1: tuple[SubPolicy, ...] = (
    *_V0,
    (Step("color", 0.0, 0), _only("shear_x", 0.8, 4)),
    (_only("shear_y", 0.8, 2), _only("flip", 0.0, 10)),
    (Step("equalize", 0.6, 10), Step("translate_x", 0.2, 2)),
    (Step("color", 1.0, 10), _only("translate_y", 0.4, 6)),
    (Step("rotate", 0.8, 10), Step("contrast", 0.0, 10)),
    (Step("cutout", 0.2, 2), Step("brightness", 0.8, 10)),
    (Step("color", 1.0, 6), Step("equalize", 1.0, 2)),
    (_only("cutout", 0.4, 6), _only("translate_y", 0.8, 2)),
    (Step("color", 0.2, 8), Step("rotate", 0.8, 10)),
    (Step("sharpness", 0.4, 4), _only("translate_y", 0.0, 4)),
    (Step("sharpness", 1.0, 4), Step("solarize_add", 0.4, 4)),
    (Step("rotate", 1.0, 8), Step("sharpness", 0.2, 8)),
    (Step("shear_y", 0.6, 10), _only("equalize", 0.6, 8)),
    (Step("shear_x", 0.2, 6), _only("translate_y", 0.2, 10)),
    (Step("solarize_add", 0.6, 8), Step("brightness", 0.8, 10)),
)

_V2: tuple[SubPolicy, ...] = (
    (Step("color", 0.0, 6), Step("cutout", 0.6, 8), Step("sharpness", 0.4, 8)),
    (Step("rotate", 0.4, 8), Step("sharpness", 0.4, 2), Step("rotate", 0.8, 10)),
    (Step("translate_y", 1.0, 8), Step("auto_contrast", 0.8, 2)),
    (Step("auto_contrast", 0.4, 6), Step("shear_x", 0.8, 8), Step("brightness", 0.0, 10)),
    (Step("solarize_add", 0.2, 6), Step("contrast", 0.0, 10), Step("auto_contrast", 0.6, 0)),
    (Step("cutout", 0.2, 0), Step("solarize", 0.8, 8), Step("color", 1.0, 4)),
    (Step("translate_y", 0.0, 4), Step("equalize", 0.6, 8), Step("solarize", 0.0, 10)),
    (Step("translate_y", 0.2, 2), Step("shear_y", 0.8, 8), Step("rotate", 0.8, 8)),
    (Step("cutout", 0.8, 8), Step("brightness", 0.8, 8), Step("cutout", 0.2, 2)),
    (Step("color", 0.8, 4), Step("translate_y", 1.0, 6), Step("rotate", 0.6, 6)),
    (Step("rotate", 0.6, 10), Step("box_cutout", 1.0, 4), Step("cutout", 0.2, 8)),
    (Step("rotate", 0.0, 0), Step("equalize", 0.6, 6), Step("shear_y", 0.6, 8)),
    (Step("brightness", 0.8, 8), Step("auto_contrast", 0.4, 2), Step("brightness", 0.2, 2)),
    (Step("translate_y", 0.4, 8), Step("solarize", 0.4, 6), Step("solarize_add", 0.2, 10)),
    (Step("contrast", 1.0, 10), Step("solarize_add", 0.2, 8), Step("equalize", 0.2, 4)),
)

_V3: tuple[SubPolicy, ...] = (
    (Step("posterize", 0.8, 2), Step("translate_x", 1.0, 8)),
    (Step("box_cutout", 0.2, 10), Step("sharpness", 1.0, 8)),
    (Step("rotate", 0.6, 8), Step("rotate", 0.8, 10)),
    (Step("equalize", 0.8, 10), Step("auto_contrast", 0.2, 10)),
    (Step("solarize_add", 0.2, 2), Step("translate_y", 0.2, 8)),
    (Step("sharpness", 0.0, 2), Step("color", 0.4, 8)),
    (Step("equalize", 1.0, 8), Step("translate_y", 1.0, 8)),
    (Step("posterize", 0.6, 2), Step("rotate", 0.0, 10)),
    (Step("auto_contrast", 0.6, 0), Step("rotate", 1.0, 6)),
    (Step("equalize", 0.0, 4), Step("cutout", 0.8, 10)),
    (Step("brightness", 1.0, 2), Step("translate_y", 1.0, 6)),
    (Step("contrast", 0.0, 2), Step("shear_y", 0.8, 0)),
    (Step("auto_contrast", 0.8, 10), Step("contrast", 0.2, 10)),
    (Step("rotate", 1.0, 10), Step("cutout", 1.0, 10)),
    (Step("solarize_add", 0.8, 6), Step("equalize", 0.8, 8)),
)

POLICIES: Mapping[PolicyName, tuple[SubPolicy, ...]] = {
    "v0": _V0,
    "v1": _V1,
    "v2": _V2,
    "v3": _V3,
    "test": ((Step("translate_x", 1.0, 4), Step("equalize", 1.0, 10)),),
}


def apply_autoaugment(scene: Scene, seed: Tensor, *, policy: PolicyName) -> Scene:
    """Draws one sub-policy and carries it out; nothing else is executed.

    Args:
        scene: the picture, scaled but not padded, its boxes and masks.
        seed: [2] int, of which all choices are a function.
        policy: name of a table.

    Returns:
        A scene of the same sizes and types. A box that left the picture is 0.
    """
    return carry_out_one(scene, POLICIES[policy], seed)


def carry_out_one(scene: Scene, sub_policies: Sequence[SubPolicy], seed: Tensor) -> Scene:
    """Draws one of the sub-policies, all equally likely, and carries it out; `seed` [2]."""
    operations = sorted({_operation(step) for steps in sub_policies for step in steps})
    choice_seed, seed = tf.unstack(tf.random.split(seed, 2))
    row = tf.random.stateless_uniform(
        [], choice_seed, maxval=len(sub_policies), dtype=tf.int32, alg="philox"
    )
    drawn = Steps(*(tf.constant(table)[row] for table in _tables(sub_policies, operations)))
    return carry_out(scene, operations, drawn, seed)


def amount_of(step: Step) -> float:
    """Returns what the level means to the operation, see `scene_operations.Change`."""
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


def _operation(step: Step) -> Operation:
    return Operation(step.name, step.in_boxes)


def _tables(sub_policies: Sequence[SubPolicy], operations: Sequence[Operation]) -> Steps:
    """Returns `Steps` [P, k] in NumPy; shorter sub-policies end with steps that never happen."""
    shape = (len(sub_policies), max(map(len, sub_policies)))
    tables = Steps(np.zeros(shape, np.int32), *np.zeros((2, *shape), np.float32))
    for row, steps in enumerate(sub_policies):
        for column, step in enumerate(steps):
            tables.places[row, column] = operations.index(_operation(step))
            tables.amounts[row, column] = amount_of(step)
            share = 1.0 / 3.0 if step.in_boxes else 1.0
            tables.probabilities[row, column] = step.probability * share
    return tables
