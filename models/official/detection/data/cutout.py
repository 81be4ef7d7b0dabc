"""Rectangles of a picture filled at random places; boxes and masks stay."""

import tensorflow as tf

from detection.data.picture_ops import fill_crossing
from detection.data.scene import Scene, is_object
from detection.types import Tensor


def cutout(scene: Scene, half_side: Tensor, seed: Tensor) -> Scene:
    """Fills a square around a random pixel (arXiv 1708.04552); what lies outside is cut off.

    Args:
        scene: the picture, its boxes and masks.
        half_side: [] float32, pixels, rounded down; 0 changes nothing.
        seed: [2].
    """
    size = tf.cast(tf.shape(scene.picture)[:2], tf.float32)
    center = tf.floor(tf.random.stateless_uniform([2], seed, alg="philox") * size)
    half = tf.floor(half_side)
    return _filled(scene, center - half, center + half)


def box_cutout(scene: Scene, share: float, seed: Tensor) -> Scene:
    """Fills a part of the box of one object, with its proportions, around a random point of it.

    Args:
        scene: the picture, its boxes and masks; without objects nothing changes.
        share: of the box's sides, 0..1; 0 changes nothing.
        seed: [2].
    """
    rows = tf.where(is_object(scene))[:, 0]

    def filled() -> Tensor:
        draws = tf.random.stateless_uniform([3], seed, alg="philox")
        place = tf.floor(draws[0] * tf.cast(tf.size(rows), tf.float32))
        box = scene.boxes[rows[tf.cast(place, tf.int32)]]
        sides = box[2:] - box[:2]
        center, half = box[:2] + draws[1:] * sides, share * sides / 2.0
        return _filled(scene, tf.round(center - half), tf.round(center + half)).picture

    return scene._replace(picture=tf.cond(tf.size(rows) > 0, filled, lambda: scene.picture))


def _filled(scene: Scene, begin: Tensor, end: Tensor) -> Scene:
    """Fills the pixels from `begin`, y and x, up to but without `end`."""
    height, width = tf.unstack(tf.cast(tf.shape(scene.picture)[:2], tf.float32))
    rows, columns = tf.range(height), tf.range(width)
    return scene._replace(
        picture=fill_crossing(
            scene.picture,
            (rows >= begin[0]) & (rows < end[0]),
            (columns >= begin[1]) & (columns < end[1]),
        )
    )
