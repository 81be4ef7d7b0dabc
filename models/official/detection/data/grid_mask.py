"""GridMask (arXiv 2001.04086): squares on a regular grid are deleted."""

import tensorflow as tf

from detection.data.picture_ops import fill_crossing
from detection.data.scene import Scene
from detection.types import Tensor


def apply_grid_mask(
    scene: Scene, seed: Tensor, *, probability: float, deleted_ratio: float
) -> Scene:
    """Fills squares, about `deleted_ratio`**2 of the picture; boxes and masks stay.

    Period and place of the grid are drawn as in the authors' code for COCO
    (github.com/dvlab-research/GridMask, detection_grid): the period is a whole number from 2 to
    below the shorter side, and the grid is not turned. Their ratio is that of the stripes kept
    between the squares, 1 - `deleted_ratio`. Deviations: they raise the probability over the
    epochs, which a function of the seed cannot know; and their zeros, put into normalised pictures,
    are the mean, here `FILL`.

    Args:
        scene: the picture, scaled but not padded, its boxes and masks.
        seed: [2] int, of which all choices are a function.
        probability: 0..1, of anything being deleted.
        deleted_ratio: side of a square as a share of the grid's period, between 0 and 1.
    """
    draws = tf.random.stateless_uniform([4], seed, alg="philox")
    size = tf.cast(tf.shape(scene.picture)[:2], tf.float32)
    num_periods = tf.maximum(tf.reduce_min(size) - 2.0, 1.0)
    period = 2.0 + tf.floor(draws[1] * num_periods)
    kept = tf.clip_by_value(tf.floor((1.0 - deleted_ratio) * period + 0.5), 1.0, period - 1.0)
    offsets = tf.floor(draws[2:] * period)

    def deleted(axis: int) -> Tensor:
        return tf.math.floormod(tf.range(size[axis]) + offsets[axis], period) >= kept

    picture = tf.cond(
        draws[0] < probability,
        lambda: fill_crossing(scene.picture, deleted(0), deleted(1)),
        lambda: scene.picture,
    )
    return scene._replace(picture=picture)
