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

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from detection.data.autoaugment_policies import POLICIES, PolicyName, Step, SubPolicy
from detection.data.scene import Scene
from detection.data.scene_operations import Operation, Steps, carry_out
from detection.types import Tensor


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
