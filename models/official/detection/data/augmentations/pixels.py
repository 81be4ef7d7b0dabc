"""Augmentations that fill pixels and move nothing: cutout, GridMask."""

import tensorflow as tf

from tpudet.detection.data.sample import AnnotatedImage, is_object
from tpudet.trainkit.images import pixel_operations
from tpudet.trainkit.types import Tensor


def cutout(annotated: AnnotatedImage, half_side: Tensor, seed: Tensor) -> AnnotatedImage:
    """Fills a square around a random pixel, clipped to the image (arXiv 1708.04552).

    Args:
        annotated: the image, its boxes and masks.
        half_side: [] float32, pixels, rounded down; 0 changes nothing.
        seed: [2].
    """
    size = tf.cast(tf.shape(annotated.image)[:2], tf.float32)
    center = tf.floor(tf.random.stateless_uniform([2], seed, alg="philox") * size)
    half = tf.floor(half_side)
    return _filled(annotated, center - half, center + half)


def box_cutout(annotated: AnnotatedImage, share: float, seed: Tensor) -> AnnotatedImage:
    """Fills a part of one object's box, of the same aspect ratio, around a random point of it.

    Args:
        annotated: the image, its boxes and masks; without objects nothing changes.
        share: of the box's sides, 0..1; 0 changes nothing.
        seed: [2].
    """
    rows = tf.where(is_object(annotated))[:, 0]

    def filled() -> Tensor:
        draws = tf.random.stateless_uniform([3], seed, alg="philox")
        place = tf.floor(draws[0] * tf.cast(tf.size(rows), tf.float32))
        box = annotated.boxes[rows[tf.cast(place, tf.int32)]]
        sides = box[2:] - box[:2]
        center, half = box[:2] + draws[1:] * sides, share * sides / 2.0
        return _filled(annotated, tf.round(center - half), tf.round(center + half)).image

    return annotated._replace(image=tf.cond(tf.size(rows) > 0, filled, lambda: annotated.image))


def _filled(annotated: AnnotatedImage, begin: Tensor, end: Tensor) -> AnnotatedImage:
    """Fills the pixels from `begin` [2], y and x, up to but excluding `end`."""
    height, width = tf.unstack(tf.cast(tf.shape(annotated.image)[:2], tf.float32))
    rows, columns = tf.range(height), tf.range(width)
    return annotated._replace(
        image=pixel_operations.fill_crossing(
            annotated.image,
            (rows >= begin[0]) & (rows < end[0]),
            (columns >= begin[1]) & (columns < end[1]),
        )
    )


def apply_grid_mask(
    annotated: AnnotatedImage, seed: Tensor, *, probability: float, deleted_ratio: float
) -> AnnotatedImage:
    """Fills squares, about `deleted_ratio`**2 of the image; boxes and masks stay.

    Period and offset of the grid are drawn as in the authors' code for COCO
    (github.com/dvlab-research/GridMask, detection_grid): the period is an integer from 2 to below
    the shorter side, and the grid is not rotated. Their ratio is that of the stripes kept between
    the squares, 1 - `deleted_ratio`. Deviations: they raise the probability over the epochs, which
    a function of the seed cannot know; they fill normalized images with zeros, the mean, and here
    `FILL` stands for it.

    Args:
        annotated: the image, scaled but not padded, its boxes and masks.
        seed: [2] int, which determines all choices.
        probability: 0..1, of the grid being applied.
        deleted_ratio: side of a square as a share of the grid's period, between 0 and 1.
    """
    draws = tf.random.stateless_uniform([4], seed, alg="philox")
    size = tf.cast(tf.shape(annotated.image)[:2], tf.float32)
    num_periods = tf.maximum(tf.reduce_min(size) - 2.0, 1.0)
    period = 2.0 + tf.floor(draws[1] * num_periods)
    kept = tf.clip_by_value(tf.floor((1.0 - deleted_ratio) * period + 0.5), 1.0, period - 1.0)
    offsets = tf.floor(draws[2:] * period)

    def deleted(axis: int) -> Tensor:
        return tf.math.floormod(tf.range(size[axis]) + offsets[axis], period) >= kept

    image = tf.cond(
        draws[0] < probability,
        lambda: pixel_operations.fill_crossing(annotated.image, deleted(0), deleted(1)),
        lambda: annotated.image,
    )
    return annotated._replace(image=image)
