"""Random choices for an image, as pure functions of (seed, epoch, record number)."""

from typing import NamedTuple

import tensorflow as tf

from tpudet.trainkit.types import Tensor


class RandomPlacement(NamedTuple):
    """Random arguments of `place_on_canvas` for one image."""

    flip: Tensor  # [] bool, mirror left and right
    scale: Tensor  # [] float32, relative to the largest size that fits into the canvas
    position: Tensor  # [2] float32 in [0, 1): y and x of the crop among all possible ones


def record_seed(seed: int, epoch: Tensor, record: Tensor) -> Tensor:
    """Returns the stateless seed, [2], of one record in one epoch.

    Args:
        seed: of the run.
        epoch: [] int64.
        record: [] int64, the record's number.
    """
    run = tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
    return fold_seed(run, record)


def fold_seed(stateless_seed: Tensor, number: Tensor) -> Tensor:
    """Returns another stateless seed, [2] int64, for each `number`, [] int64."""
    return tf.random.fold_in(stateless_seed, tf.cast(number, tf.int64))


def draw_placement(
    stateless_seed: Tensor, *, horizontal_flip: bool, scale_range: tuple[float, float]
) -> RandomPlacement:
    """Draws flip (p = 0.5), scale (uniform) and position of the crop (uniform).

    All four numbers are always drawn, so switching the flip off does not change the scales.

    Args:
        stateless_seed: [2], see `record_seed`.
        horizontal_flip: whether mirroring is allowed.
        scale_range: lowest and highest scale, within 0.1..2.0; 1 fits the image into the canvas.
    """
    low, high = scale_range
    draws = tf.random.stateless_uniform([4], stateless_seed, alg="philox")
    return RandomPlacement(
        flip=tf.logical_and(horizontal_flip, draws[0] < 0.5),
        scale=low + draws[1] * (high - low),
        position=draws[2:],
    )
