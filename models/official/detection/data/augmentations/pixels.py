"""GridMask (arXiv 2001.04086): squares on a regular grid are deleted."""

import tensorflow as tf

from tpudet.detection.data.sample import Scene, is_object
from tpudet.trainkit.images import pixel_operations
from tpudet.trainkit.images.pixel_operations import fill_crossing
from tpudet.trainkit.types import Tensor


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
        changed = pixel_operations.change_brightness(changed, 1.0 + brightness * draws[0])
    if contrast:
        changed = pixel_operations.change_contrast(changed, 1.0 + contrast * draws[1])
    if saturation:
        changed = pixel_operations.change_color(changed, 1.0 + saturation * draws[2])
    if hue:
        changed = pixel_operations.turn_hue(changed, hue * draws[3])
    return scene._replace(picture=changed)


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
