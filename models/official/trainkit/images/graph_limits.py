"""Limits of `pixel_limit` for images that TensorFlow decodes, by operations of its own.

Records of others, and what is sent to an exported model, have passed no check. A check costs some
microseconds, where decoding takes milliseconds: it reads the sizes in a header, and searches the
rest only where that is so large that it may hold thousands of scans, or gigabytes of text.
"""

from typing import Any

import tensorflow as tf

from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.types import Tensor

_JPEG_START = b"\xff\xd8\xff"
_PNG_START = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
_GIF_START = b"GIF"

_SCAN_START, _SCAN_BYTES = b"\xff\xda", 10  # of a scan, at least
_SCANS_FOR_SURE = 8  # as many times too many scans are not decoded in any case
_TEXTS = (b"zTXt", b"iTXt")  # of a PNG; each may inflate to 8 MB, libpng's own limit
_MAX_TEXTS = 32
_TEXT_BYTES = 7_700  # of those 8 MB in zlib's format, at least
# TensorFlow decodes all frames of a GIF, and a byte of one may be 2,700 pixels.
_MAX_GIF_BYTES = 2**18


def is_jpeg(encoded: Tensor) -> Tensor:
    """Whether a file, [] string, begins as a JPEG does, [] bool."""
    return tf.strings.substr(encoded, 0, 3) == _JPEG_START


def jpeg_size(encoded: Tensor) -> Tensor:
    """Returns height and width of a JPEG, [2] int32, if it may be decoded.

    Args:
        encoded: [] string.

    Raises:
        tf.errors.InvalidArgumentError: it is no JPEG, or has more than `pixel_limit.MAX_PIXELS`
            pixels, which a progressive one keeps in memory whatever is decoded of them, or more
            scans than `pixel_limit.check_jpeg` allows.
    """
    size = tf.image.extract_jpeg_shape(encoded)[:2]
    pixels = tf.reduce_prod(tf.cast(size, tf.float32))
    length = tf.strings.length(encoded)
    most = 64.0 * pixel_limit.MAX_SCANNED_BLOCKS  # pixels times scans
    # No branches, which take 60 us each, 2 % of decoding 640 x 480 pixels.
    is_searched = pixels * tf.cast(length, tf.float32) > _SCANS_FOR_SURE * _SCAN_BYTES * most
    scans = _count(tf.strings.substr(encoded, 0, tf.where(is_searched, length, 0)), _SCAN_START)
    # Both limits in one: so many scans are allowed of the largest image.
    counted = tf.maximum(tf.cast(scans, tf.float32), most / max(pixel_limit.MAX_PIXELS, 1))
    wrong = ["A JPEG of too many pixels or scans; height, width, scans if counted:", size, scans]
    with tf.control_dependencies([_check(pixels * counted <= most, wrong)]):
        return tf.identity(size)


def png_sizes(encoded: Tensor) -> Tensor:
    """Returns heights and widths of PNG files, [n, 2] int32, if they may be decoded.

    Args:
        encoded: [n] string, n from 1.

    Raises:
        tf.errors.InvalidArgumentError: one is no PNG, has more than `pixel_limit.MAX_PIXELS`
            pixels, or they have many compressed text chunks.
    """
    start = tf.strings.substr(encoded, 0, 24) + bytes(24)  # as short a file as there may be
    are_png = tf.strings.substr(start, 0, len(_PNG_START)) == _PNG_START
    sides = tf.io.decode_raw(tf.strings.substr(start, 16, 8), tf.int32, little_endian=False)
    pixels = tf.reduce_max(tf.reduce_prod(tf.cast(sides, tf.int64), axis=-1))
    length = tf.reduce_sum(tf.strings.length(encoded))
    texts = tf.cond(
        length > _MAX_TEXTS * _TEXT_BYTES,
        lambda: sum(_count(encoded, text) for text in _TEXTS),
        lambda: 0,
    )
    wrong = [f"A PNG of more than {pixel_limit.MAX_PIXELS:,} pixels; width, height:", sides]
    checks = [
        _check(tf.reduce_all(are_png), ["An image is no PNG, as it should be."]),
        _check(pixels <= pixel_limit.MAX_PIXELS, wrong),
        _check(texts <= _MAX_TEXTS, ["A PNG with many text chunks; how many:", texts]),
    ]
    with tf.control_dependencies(checks):
        return tf.reverse(sides, [-1])


def checked_image(encoded: Tensor) -> Tensor:
    """Returns an image, [] string, unchanged if it may be decoded as a whole.

    Raises:
        tf.errors.InvalidArgumentError: a JPEG or PNG as above, or a GIF that is too large.
    """
    start = tf.strings.substr(encoded, 0, 24)
    is_png = tf.strings.substr(start, 0, len(_PNG_START)) == _PNG_START
    is_gif = tf.strings.substr(start, 0, len(_GIF_START)) == _GIF_START
    size = tf.case(
        [
            (is_jpeg(encoded), lambda: jpeg_size(encoded)),
            (is_png, lambda: png_sizes(tf.expand_dims(encoded, 0))[0]),
            (is_gif, lambda: _gif_size(encoded)),
        ],
        default=lambda: tf.zeros([2], tf.int32),  # a BMP, which is as large as it says, or none
    )
    with tf.control_dependencies([size]):
        return tf.identity(encoded)


def _gif_size(encoded: Tensor) -> Tensor:
    sides = tf.strings.substr(tf.strings.substr(encoded, 6, 4) + bytes(4), 0, 4)
    size = tf.cast(tf.io.decode_raw(sides, tf.uint16), tf.int32)[::-1]
    pixels = tf.reduce_prod(tf.cast(size, tf.int64))
    limit = pixel_limit.MAX_GIF_PIXELS
    small = ["A GIF of more bytes than are decoded; save it as a PNG:", tf.strings.length(encoded)]
    checks = [
        _check(pixels <= limit, [f"A GIF of more than {limit:,} pixels:", size]),
        _check(tf.strings.length(encoded) <= _MAX_GIF_BYTES, small),
    ]
    with tf.control_dependencies(checks):
        return tf.identity(size)


def _check(condition: Tensor, wrong: list) -> Any:
    """As tf.debugging.Assert, without its branch."""
    return tf.raw_ops.Assert(condition=condition, data=wrong)


def _count(texts: Tensor, part: bytes) -> Tensor:
    """How often a part is in a string, or in several of them together, [] int32."""
    texts = tf.reshape(texts, [-1])
    parts: Any = tf.raw_ops.StringSplitV2(input=texts, sep=part)
    return tf.size(parts.values) - tf.size(texts)
