"""Decodes a crop of an image at a fixed size, as classifiers see it.

Only the wanted part of a JPEG is decoded, at 1/2, 1/4 or 1/8 where the result is still no smaller
than wanted (libjpeg scales in the DCT); the rest is a bilinear reduction by less than 2, as in
`canvas`. tensorflow/tpu resizes by bicubic interpolation instead, which does not average, so that
fine patterns of a large image alias.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tpudet.trainkit.images.decoding import (
    choose_reduction,
    decode_jpeg_window,
    decode_whole,
    reduce_uint8,
    resize_uint8,
)
from tpudet.trainkit.images.graph_limits import is_jpeg, jpeg_size
from tpudet.trainkit.types import Tensor

_MIN_OBJECT_COVERED = 0.1  # of the image, as in tensorflow/tpu
_ATTEMPTS = 10


class Crop(NamedTuple):
    """A rectangle of an image, in its pixels."""

    begin: Tensor  # [2] int32, y and x
    size: Tensor  # [2] int32, height and width


def center_crop(size: Tensor, share: float, *, aspect: float) -> Crop:
    """Returns the central crop of an image.

    Args:
        size: [2] int32, height and width of the image.
        share: 0..1, side of the crop over that of the largest that fits.
        aspect: width / height of the crop.
    """
    height, width = tf.unstack(tf.cast(size, tf.float32))
    largest = tf.minimum(height, width / aspect)
    wanted = tf.stack([largest, largest * aspect]) * share
    crop_size = tf.clip_by_value(tf.cast(tf.round(wanted), tf.int32), 1, size)
    return Crop((size - crop_size) // 2, crop_size)


def random_crop(
    size: Tensor,
    seed: Tensor,
    *,
    area_range: tuple[float, float],
    aspect_range: tuple[float, float],
    otherwise: Crop,
) -> Crop:
    """Returns a crop of random area, shape and place (Szegedy et al., arXiv 1409.4842, section 6).

    Args:
        size: [2] int32, height and width of the image.
        seed: [2].
        area_range: of the crop, as shares of the image.
        aspect_range: width / height of the crop.
        otherwise: the crop to take if ten attempts find none that fits.
    """
    shape = tf.concat([size, [3]], axis=0)
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed,
        min_object_covered=min(_MIN_OBJECT_COVERED, area_range[0]),
        aspect_ratio_range=aspect_range,
        area_range=area_range,
        max_attempts=_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    failed = tf.reduce_all(extent[:2] == size)  # the whole image is what the op then returns
    return Crop(
        tf.where(failed, otherwise.begin, begin[:2]),
        tf.where(failed, otherwise.size, extent[:2]),
    )


def decode_crop(
    encoded: Tensor,
    choose: Callable[[Tensor], Crop],
    height: int,
    width: int,
    *,
    move: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Decodes a crop of an image at a fixed size, [height, width, 3] uint8.

    Args:
        encoded: [] string, a JPEG, PNG, GIF (first frame) or BMP file.
        choose: from the size of the image, [2] int32, to the crop.
        height: of the result, pixels.
        width: of the result, pixels.
        move: of the whole image, [h, w, 3] uint8, which keeps its size, before the crop is taken;
            all of it is then decoded, at full size.
    """

    def from_jpeg() -> Tensor:
        crop = choose(jpeg_size(encoded))
        return _decode_jpeg(encoded, crop, height, width)

    def from_whole() -> Tensor:
        image = decode_whole(encoded)
        if move is not None:
            image = move(image)
        return resize_crop(image, choose(tf.shape(image)[:2]), height, width)

    if move is not None:
        return tf.ensure_shape(from_whole(), [height, width, 3])
    pixels = tf.cond(is_jpeg(encoded), from_jpeg, from_whole)
    return tf.ensure_shape(pixels, [height, width, 3])


def resize_crop(image: Tensor, crop: Crop, height: int, width: int) -> Tensor:
    """Returns a crop of an image [h, w, 3] uint8 at a fixed size, [height, width, 3] uint8."""
    pixels = tf.slice(
        image, tf.concat([crop.begin, [0]], axis=0), tf.concat([crop.size, [3]], axis=0)
    )
    ratio = tf.bitwise.left_shift(1, _reduction(crop.size, height, width))
    reduced = tf.cond(
        ratio > 1, lambda: reduce_uint8(pixels, -(-crop.size // ratio)), lambda: pixels
    )
    return _resize_if_needed(reduced, height, width)


def _reduction(size: Tensor, height: int, width: int) -> Tensor:
    return choose_reduction(tf.cast(size, tf.float32), tf.constant([height, width], tf.float32))


def _decode_jpeg(encoded: Tensor, crop: Crop, height: int, width: int) -> Tensor:
    reduction = _reduction(crop.size, height, width)
    ratio = tf.bitwise.left_shift(1, reduction)
    begin = crop.begin // ratio
    size = -(-(crop.begin + crop.size) // ratio) - begin  # within the image: libjpeg rounds up
    pixels = decode_jpeg_window(encoded, begin, size, reduction)
    return _resize_if_needed(pixels, height, width)


def _resize_if_needed(pixels: Tensor, height: int, width: int) -> Tensor:
    fits = tf.reduce_all(tf.shape(pixels)[:2] == [height, width])
    return tf.cond(fits, lambda: pixels, lambda: resize_uint8(pixels, [height, width], "bilinear"))
