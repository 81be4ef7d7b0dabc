"""Random choices of augmentation, as pure functions of (seed, epoch, record number)."""

from typing import NamedTuple

import tensorflow as tf

from tpudet.trainkit.types import Tensor


class Augmentation(NamedTuple):
    """What was drawn for one picture."""

    flip: Tensor  # [] bool, mirror left and right
    scale: Tensor  # [] float32, relative to the largest size that fits into the canvas
    position: Tensor  # [2] float32 in [0, 1): place of the crop, y and x, where one is needed


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


def draw_augmentation(
    stateless_seed: Tensor, *, horizontal_flip: bool, scale_range: tuple[float, float]
) -> Augmentation:
    """Draws flip (p = 0.5), scale (uniform) and position of the crop (uniform).

    All four numbers are drawn whatever the arguments say, so switching the flip off does not
    change the scales.

    Args:
        stateless_seed: [2], see `record_seed`.
        horizontal_flip: whether mirroring is allowed.
        scale_range: least and greatest scale within 0.1..2.0; 1 fits the picture into the canvas.
    """
    low, high = scale_range
    draws = tf.random.stateless_uniform([4], stateless_seed, alg="philox")
    return Augmentation(
        flip=tf.logical_and(horizontal_flip, draws[0] < 0.5),
        scale=low + draws[1] * (high - low),
        position=draws[2:],
    )
