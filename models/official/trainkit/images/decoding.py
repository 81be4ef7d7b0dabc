"""The steps of decoding that canvases and crops share: reduced JPEGs, whole images, resizing."""

from typing import Literal

import tensorflow as tf

from tpudet.trainkit.images.graph_limits import checked_image
from tpudet.trainkit.types import Tensor

_WIDENED = 2**25  # values, 134 MB as float32


def choose_reduction(size: Tensor, wanted: Tensor) -> Tensor:
    """Returns the largest k, 0 to 3: at 1 / 2**k an image still has all the wanted pixels.

    Args:
        size: [2] float32, height and width; libjpeg rounds the reduced ones up.
        wanted: [2] float32.
    """
    reduced = tf.math.ceil(size / tf.constant([[2.0], [4.0], [8.0]]))
    return tf.reduce_sum(tf.cast(tf.reduce_all(reduced >= wanted, axis=-1), tf.int32))


def decode_jpeg_window(encoded: Tensor, begin: Tensor, size: Tensor, reduction: Tensor) -> Tensor:
    """Decodes a part of a JPEG at 1 / 2**reduction, [*size, 3] uint8.

    The reduction is an attribute of TensorFlow's operation, hence four branches.

    Args:
        encoded: [] string.
        begin: [2] int32, y and x, pixels of the reduced image.
        size: [2] int32, height and width, likewise.
        reduction: [] int32, 0 to 3.
    """
    window = tf.concat([begin, size], axis=0)

    def decode_at(ratio: int) -> Tensor:
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3, ratio=ratio)

    return tf.switch_case(
        reduction, [lambda ratio=ratio: decode_at(ratio) for ratio in (1, 2, 4, 8)]
    )


def decode_whole(encoded: Tensor) -> Tensor:
    """Decodes an image, [h, w, 3] uint8.

    Args:
        encoded: [] string, a JPEG, PNG, GIF (first frame) or BMP file.

    Raises:
        tf.errors.InvalidArgumentError: it cannot be decoded, or takes too much memory or time; see
            `graph_limits`.
    """
    image = tf.io.decode_image(checked_image(encoded), channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def resize_uint8(
    image: Tensor, size: Tensor | list[int], method: Literal["area", "bilinear"]
) -> Tensor:
    """Resizes uint8 [h, w, 3] to `size`, rounding to the nearest level.

    The 0.5 for rounding is added before: weights sum to 1, so it is preserved, and the float32
    kernel is faster (1.5 ms for 640x480 in total; 1.9 ms with uint8 input and 0.5 added afterwards;
    4.9 ms with QuantizeV2 on varying sizes).
    """
    return tf.cast(tf.image.resize(tf.cast(image, tf.float32) + 0.5, size, method), tf.uint8)


def reduce_uint8(image: Tensor, size: Tensor) -> Tensor:
    """Reduces a whole image, uint8 [h, w, 3], to `size` by averaging areas.

    Of the largest ones float32 would take gigabytes.
    """

    def as_it_is() -> Tensor:
        return tf.cast(tf.image.resize(image, size, "area") + 0.5, tf.uint8)

    is_small = tf.size(image) <= _WIDENED
    return tf.cond(is_small, lambda: resize_uint8(image, size, "area"), as_it_is)
