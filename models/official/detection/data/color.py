"""Random brightness, contrast, saturation and hue."""

import tensorflow as tf

from detection.data import picture_ops
from detection.data.scene import Scene
from detection.types import Tensor


def apply_color(
    scene: Scene,
    seed: Tensor,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Scene:
    """Changes the four, in this order; boxes and masks stay. What is 0 costs nothing.

    Args:
        scene: the picture, its boxes and masks.
        seed: [2] int, of which all choices are a function.
        brightness: 0..1; the factor is uniform in 1 - x .. 1 + x, as of the next two.
        contrast: 0..1.
        saturation: 0..1.
        hue: 0..0.5; the turn is uniform in -x .. x, 1 being a whole one.
    """
    draws = tf.random.stateless_uniform([4], seed, -1.0, 1.0, alg="philox")
    changed = scene.picture
    if brightness:
        changed = picture_ops.change_brightness(changed, 1.0 + brightness * draws[0])
    if contrast:
        changed = picture_ops.change_contrast(changed, 1.0 + contrast * draws[1])
    if saturation:
        changed = picture_ops.change_color(changed, 1.0 + saturation * draws[2])
    if hue:
        changed = picture_ops.turn_hue(changed, hue * draws[3])
    return scene._replace(picture=changed)
