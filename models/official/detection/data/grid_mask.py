"""GridMask (arXiv 2001.04086): squares on a regular grid are deleted."""

import tensorflow as tf

from detection.data.picture_ops import fill_crossing
from detection.data.scene import Scene, pixel_unit
from detection.types import Tensor

PERIOD_PIXELS = (96.0, 224.0)  # the paper's least and greatest, of a longer side of 640


def apply_grid_mask(
    picture: Tensor,
    boxes: Tensor,
    masks: Tensor | None,
    seed: Tensor,
    *,
    probability: float,
    ratio: float,
) -> Scene:
    """Fills squares, `ratio`**2 of the picture; boxes and masks stay.

    The period and the place of the grid are drawn. Deviations: the paper raises the probability
    over the epochs, which a function of the seed cannot know; and its zeros, put into normalised
    pictures, are the mean, here `FILL`.

    Args:
        picture: [h, w, 3] uint8, scaled but not padded.
        boxes: [n, 4] float32.
        masks: [n, h, w], or None.
        seed: [2] int, of which all choices are a function.
        probability: 0..1, of anything being deleted.
        ratio: side of a square as a share of the grid's period, between 0 and 1.

    Raises:
        ValueError: an argument is out of range.
    """
    if not (0 <= probability <= 1 and 0 < ratio < 1):
        raise ValueError(
            f"probability must be in 0..1 and ratio between 0 and 1, got {probability} and {ratio}."
        )
    draws = tf.random.stateless_uniform([4], seed, alg="philox")
    low, high = PERIOD_PIXELS
    drawn_period = (low + draws[1] * (high - low)) * pixel_unit(picture)
    period = tf.maximum(tf.round(drawn_period), 2.0)
    side = tf.clip_by_value(tf.round(ratio * period), 1.0, period - 1.0)
    offsets = tf.floor(draws[2:] * period)

    def deleted(axis: int) -> Tensor:
        places = tf.range(tf.cast(tf.shape(picture)[axis], tf.float32))
        return tf.math.floormod(places + offsets[axis], period) < side

    changed = tf.cond(
        draws[0] < probability,
        lambda: fill_crossing(picture, deleted(0), deleted(1)),
        lambda: picture,
    )
    return Scene(changed, boxes, masks)
