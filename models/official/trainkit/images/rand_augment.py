"""RandAugment (arXiv 1909.13719): its fourteen operations, their strengths, and the draws.

A magnitude of 0 leaves an image as it is, whichever operation is drawn, except auto-contrast and
equalize; 10 is the greatest strength: torchvision's scale, with AutoAugment's greatest strengths.
"""

from typing import NamedTuple

import tensorflow as tf

from tpudet.trainkit.types import Tensor

NAMES = (
    *("identity", "auto_contrast", "equalize", "rotate", "solarize", "color", "posterize"),
    *("contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)


class Draws(NamedTuple):
    """k operations to apply one after another."""

    indices: Tensor  # [k] int32, into NAMES
    amounts: Tensor  # [k] float32, see `operation_amounts`
    seed: Tensor  # [2], for the rest


def draw_operations(seed: Tensor, *, num_ops: int, magnitude: float) -> Draws:
    """Draws operations uniformly with repetition, and one of the two amounts of each.

    Args:
        seed: [2] int, which determines all choices.
        num_ops: at least 1.
        magnitude: 0..10.
    """
    choice_seed, sign_seed, rest = tf.unstack(tf.random.split(seed, 3))
    indices = tf.random.stateless_uniform(
        [num_ops], choice_seed, maxval=len(NAMES), dtype=tf.int32, alg="philox"
    )
    signs = tf.random.stateless_uniform(
        [num_ops], sign_seed, maxval=2, dtype=tf.int32, alg="philox"
    )
    amounts = tf.constant([operation_amounts(name, magnitude) for name in NAMES])
    return Draws(indices, tf.gather_nd(amounts, tf.stack([indices, signs], axis=1)), rest)


def operation_amounts(name: str, magnitude: float) -> tuple[float, float]:
    """Returns the two equally likely amounts of an operation.

    Rotation by 30 degrees, shear by 0.3, translation by 250 pixels of 640, factors 1 - 0.9 and
    1 + 0.9, 8 - 4 bits and a threshold of 256 - 256, each times a tenth of the magnitude.
    """
    strength = magnitude / 10.0
    factors = (1.0 - 0.9 * strength, 1.0 + 0.9 * strength)
    amounts = {
        "rotate": (30.0 * strength,) * 2,
        "shear_x": (0.3 * strength,) * 2,
        "shear_y": (0.3 * strength,) * 2,
        "translate_x": (250.0 * strength,) * 2,
        "translate_y": (250.0 * strength,) * 2,
        "posterize": (8.0 - round(4 * strength),) * 2,
        "solarize": (float(round(256 * (1 - strength))),) * 2,
        "brightness": factors,
        "color": factors,
        "contrast": factors,
        "sharpness": factors,
    }
    return amounts.get(name, (0.0, 0.0))
