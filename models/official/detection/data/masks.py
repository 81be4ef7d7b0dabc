"""The masks of a record as one map of instances, brought onto the canvas as its picture was."""

import tensorflow as tf

from detection.data.canvas import PlacedImage
from detection.types import Tensor


def instance_map(encoded: Tensor, areas: Tensor, placed: PlacedImage, flip: Tensor) -> Tensor:
    """Decodes the masks of one record, resamples them to the nearest pixel, and mirrors them.

    Args:
        encoded: [n] string, PNG files as large as the picture; or [0] where the record has none.
        areas: [n] float32; of several instances that have a pixel the smallest gets it.
        placed: where the picture lies.
        flip: [] bool, whether the picture was mirrored.

    Returns:
        [h, w] int32 as large as the placed picture; 1 + row of the instance, or 0.

    Raises:
        tf.errors.InvalidArgumentError: another number of masks, or a mask of another size.
    """
    size = tf.cast(placed.original_size, tf.int32)
    fitting = (tf.size(encoded) == 0) | (tf.size(encoded) == tf.size(areas))
    with tf.control_dependencies(
        [tf.debugging.Assert(fitting, ["masks, objects:", tf.size(encoded), tf.size(areas)])]
    ):
        largest_first = tf.argsort(areas, direction="DESCENDING", stable=True)[: tf.size(encoded)]

    def draw(drawn: Tensor, row: Tensor) -> Tensor:
        mask = tf.io.decode_png(encoded[row], channels=1)[..., 0]
        same = tf.reduce_all(tf.shape(mask) == size)
        wrong = ["height, width of a mask and of its picture:", tf.shape(mask), size]
        with tf.control_dependencies([tf.debugging.Assert(same, wrong)]):
            return tf.where(mask > 0, row + 1, drawn)

    original = tf.foldl(draw, largest_first, initializer=tf.zeros(size, tf.int32))
    height, width = tf.unstack(tf.shape(placed.image)[:2])
    rows = _nearest(height, placed.scale[0], placed.offset[0], size[0])
    columns = _nearest(width, placed.scale[1], placed.offset[1], size[1])
    columns = tf.where(flip, size[1] - 1 - columns, columns)
    return tf.gather(tf.gather(original, rows), columns, axis=1)


def _nearest(length: Tensor, scale: Tensor, offset: Tensor, original_length: Tensor) -> Tensor:
    """Returns, for the pixels 0..length-1 of the canvas, the original one under each centre."""
    centres = (tf.range(tf.cast(length, tf.float32)) + 0.5 + offset) / scale
    return tf.clip_by_value(tf.cast(centres, tf.int32), 0, original_length - 1)
