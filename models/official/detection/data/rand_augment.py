"""RandAugment (arXiv 1909.13719): operations drawn at random, all of one strength.

The fourteen operations of the paper. Here a magnitude of 0 leaves a picture as it is whichever is
drawn, auto-contrast and equalisation excepted, and 10 is the greatest strength: the scale of
torchvision's RandAugment, with AutoAugment's greatest strengths. (AutoAugment's own scale takes
colours away at level 0 and solarises least at level 10.)
"""

import tensorflow as tf

from detection.data.scene import Scene
from detection.data.scene_operations import Operation, Steps, carry_out
from detection.types import Tensor

OPERATIONS = (
    Operation("identity"),
    Operation("auto_contrast"),
    Operation("equalize"),
    Operation("rotate"),
    Operation("solarize"),
    Operation("color"),
    Operation("posterize"),
    Operation("contrast"),
    Operation("brightness"),
    Operation("sharpness"),
    Operation("shear_x"),
    Operation("shear_y"),
    Operation("translate_x"),
    Operation("translate_y"),
)


def apply_rand_augment(scene: Scene, seed: Tensor, *, num_ops: int, magnitude: float) -> Scene:
    """Carries out `num_ops` operations, drawn with equal chances and with repetition.

    Args:
        scene: the picture, scaled but not padded, its boxes and masks.
        seed: [2] int, of which all choices are a function.
        num_ops: at least 1.
        magnitude: 0..10.

    Returns:
        A scene of the same sizes and types. A box that left the picture is 0.
    """
    choice_seed, sign_seed, change_seed = tf.unstack(tf.random.split(seed, 3))
    places = tf.random.stateless_uniform(
        [num_ops], choice_seed, maxval=len(OPERATIONS), dtype=tf.int32, alg="philox"
    )
    signs = tf.random.stateless_uniform(
        [num_ops], sign_seed, maxval=2, dtype=tf.int32, alg="philox"
    )
    amounts = tf.constant([amounts_of(operation.name, magnitude) for operation in OPERATIONS])
    steps = Steps(
        places=places,
        amounts=tf.gather_nd(amounts, tf.stack([places, signs], axis=1)),
        probabilities=tf.ones([num_ops]),
    )
    return carry_out(scene, OPERATIONS, steps, change_seed)


def amounts_of(name: str, magnitude: float) -> tuple[float, float]:
    """Returns the two amounts, equally likely, of an operation, see `scene_operations.Change`.

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
