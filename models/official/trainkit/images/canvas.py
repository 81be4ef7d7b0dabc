"""Decodes, crops, resizes, mirrors and pads an image to a uint8 canvas of fixed size.

The image is at the top left of the canvas; the rest is 0. Evaluation and export call
`decode_to_canvas`, and training calls the same steps with random numbers, so pixels are computed in
one way only.

JPEGs are decoded at 1/2, 1/4 or 1/8 (libjpeg scales in the DCT): the largest reduction that still
has at least the wanted number of pixels on both axes. So 1024x768 on a 512 canvas is decoded at 1/2
and needs no resizing; for a result slightly larger than 1/2 the whole image is decoded, because
enlarging a reduced image would blur it. The rest is a bilinear reduction by less than 2. Images of
other formats are reduced by the same factor by area averaging, so that large ones do not alias.

The crop is taken while decoding: `decode_and_crop_jpeg` costs as much as `decode_jpeg` for the
whole image (1.37 and 1.33 ms at 640x480) and less for a part (0.88 ms for the central quarter;
1.52 ms with a slice after decoding). The DCT is the default, accurate one: libjpeg-turbo's
INTEGER_FAST was not faster (1.33 ms) on a CPU with AVX2.
"""

from collections.abc import Callable, Sequence
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

# (sizes of image and canvas, both [2] float32) -> canvas pixels per original pixel, [2] float32
Resize = Callable[[Tensor, Tensor], Tensor]


class PlacedImage(NamedTuple):
    """An image on its canvas. Point `p` of the original is at `p * scale - offset` on the canvas.

    If the image is mirrored, the mirrored image counts as the original.
    """

    image: Tensor  # [H, W, 3] uint8; without padding from `place_on_canvas`
    original_size: Tensor  # [2] float32, height and width
    scale: Tensor  # [2] float32, canvas pixels per original pixel, y and x
    offset: Tensor  # [2] float32, canvas pixels, y and x


class _Window(NamedTuple):
    """The part of the image to decode, at which reduction, and its size after resizing."""

    reduction: Tensor  # [] int32, k: decoded at 1 / 2**k
    decoded_pixel: Tensor  # [2] float32, sides of a decoded pixel in original pixels
    begin: Tensor  # [2] int32, decoded pixels
    size: Tensor  # [2] int32, decoded pixels
    resized: Tensor  # [2] int32, canvas pixels; may exceed the canvas by a few, which are cropped


def fit(size: Tensor, canvas: Tensor) -> Tensor:
    """The largest size that fits into the canvas; the aspect ratio stays. A `Resize`."""
    return tf.repeat(tf.reduce_min(canvas / size), 2)


def stretch(size: Tensor, canvas: Tensor) -> Tensor:
    """The size of the canvas, whatever the aspect ratio. A `Resize`."""
    return canvas / size


def fit_short_side(size: Tensor, canvas: Tensor, *, short_side: int, long_side: int) -> Tensor:
    """The given shorter side, unless the longer one would exceed its limit or the canvas.

    Fractions of pixels are dropped, as in torchvision. A `Resize` once the sides are given, both
    in pixels.
    """
    longest = tf.cast(long_side, tf.float32) / tf.reduce_max(size)
    scale = tf.minimum(tf.cast(short_side, tf.float32) / tf.reduce_min(size), longest)
    resized = size * tf.minimum(fit(size, canvas), scale)
    # What is whole but for float32 stays: 427 * (800 / 427).
    return tf.maximum(tf.floor(resized + 1e-3), 1.0) / size


def decode_to_canvas(
    encoded: Tensor, canvas_height: int, canvas_width: int, resize: Resize = fit
) -> PlacedImage:
    """Decodes and resizes an image and pads it to the canvas, as evaluation and export do.

    Args:
        encoded: [] string, a JPEG, PNG, GIF (first frame) or BMP file.
        canvas_height: pixels.
        canvas_width: pixels.
        resize: as of `place_on_canvas`.
    """
    placed = place_on_canvas(
        encoded,
        canvas_height,
        canvas_width,
        scale=1.0,
        position=(0.0, 0.0),
        flip=False,
        resize=resize,
    )
    return placed._replace(image=pad_image(placed.image, canvas_height, canvas_width))


def place_on_canvas(
    encoded: Tensor,
    canvas_height: int | Tensor,
    canvas_width: int | Tensor,
    *,
    scale: Tensor | float,
    position: Tensor | tuple[float, float],
    flip: Tensor | bool,
    resize: Resize = fit,
) -> PlacedImage:
    """Decodes and scales an image, and crops it if it is larger than the canvas.

    The returned image is not padded yet, [h, w, 3] with h <= H and w <= W: `padded_batch` pads
    while it copies, which saves a pass over every image (0.15 ms of 1.9 at 640x480).

    The scale on an axis is exactly (canvas pixels) / (original pixels) of the resized part, so
    boxes are exact in spite of rounding.

    Args:
        encoded: [] string, as for `decode_to_canvas`.
        canvas_height: pixels.
        canvas_width: pixels.
        scale: [] float32, relative to the size that `resize` gives.
        position: [2] float32 in [0, 1), y and x of the crop among all possible ones.
        flip: [] bool, whether to mirror left and right.
        resize: `fit`, `stretch`, or `fit_short_side` with its sides.
    """
    canvas = (canvas_height, canvas_width)

    def from_jpeg() -> tuple:
        size = jpeg_size(encoded)
        window = _plan_window(size, canvas, resize, scale, position, of_jpeg=True)
        pixels = decode_jpeg_window(encoded, window.begin, window.size, window.reduction)
        return pixels, size, window

    def from_other() -> tuple:
        image = decode_whole(encoded)
        window = _plan_window(tf.shape(image)[:2], canvas, resize, scale, position, of_jpeg=False)
        return _reduce_window(image, window), tf.shape(image)[:2], window

    pixels, size, window = tf.cond(is_jpeg(encoded), from_jpeg, from_other)
    return _place(pixels, size, window, canvas, flip)


def resize_to_canvas(
    image: Tensor, canvas_height: int, canvas_width: int, resize: Resize = fit
) -> PlacedImage:
    """Brings a decoded image, [h, w, 3] uint8, to the canvas as `decode_to_canvas` does."""
    canvas, size = (canvas_height, canvas_width), tf.shape(image)[:2]
    window = _plan_window(size, canvas, resize, 1.0, (0.0, 0.0), of_jpeg=False)
    placed = _place(_reduce_window(image, window), size, window, canvas, False)
    return placed._replace(image=pad_image(placed.image, canvas_height, canvas_width))


def pad_image(pixels: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
    """Pads [h, w, c] with 0 at the bottom and right to [height, width, c].

    As rows of h x (w * c), because `tf.pad` is half as fast if its last axis has three elements.
    """
    channels = pixels.shape[-1]
    rows, columns = tf.unstack(tf.shape(pixels)[:2])
    padding = [[0, height - rows], [0, (width - columns) * channels]]
    padded = tf.pad(tf.reshape(pixels, [rows, columns * channels]), padding)
    return tf.reshape(padded, [height, width, channels])


def pad_with_colour(
    pixels: Tensor, height: int | Tensor, width: int | Tensor, rgb: Sequence[int]
) -> Tensor:
    """As `pad_image`, of [h, w, 3] uint8, with a colour, red, green and blue in 0..255, for 0."""
    is_image = pad_image(tf.ones_like(pixels), height, width) > 0
    return tf.where(is_image, pad_image(pixels, height, width), tf.constant([*rgb], tf.uint8))


def _plan_window(
    size: Tensor,
    canvas: tuple[int | Tensor, int | Tensor],
    resize: Resize,
    scale: Tensor | float,
    position: Tensor | tuple[float, float],
    *,
    of_jpeg: bool,
) -> _Window:
    """Chooses reduction and crop for an image of `size` [2] int32, height and width."""
    canvas_size = tf.cast(tf.stack(canvas), tf.float32)
    original = tf.cast(size, tf.float32)
    factor = resize(original, canvas_size) * scale  # canvas pixels per original pixel
    wanted = tf.maximum(tf.round(original * factor), 1.0)
    reduction = choose_reduction(original, wanted)
    ratio = tf.cast(tf.bitwise.left_shift(1, reduction), tf.float32)
    decoded = tf.math.ceil(original / ratio)
    # libjpeg's last pixel may cover fewer than `ratio` original ones; in `_reduce_window` all
    # pixels cover equally many.
    decoded_pixel = tf.stack([ratio, ratio]) if of_jpeg else original / decoded
    visible = tf.minimum(decoded, tf.math.ceil(canvas_size / (factor * decoded_pixel)))
    resized = tf.maximum(tf.round(visible * decoded_pixel * factor), 1.0)
    # Without a crop, rounding must not make the image larger than the canvas.
    resized = tf.where(visible == decoded, tf.minimum(resized, canvas_size), resized)
    begin = tf.minimum(tf.floor(position * (decoded - visible + 1.0)), decoded - visible)
    return _Window(
        reduction=reduction,
        decoded_pixel=decoded_pixel,
        begin=tf.cast(begin, tf.int32),
        size=tf.cast(visible, tf.int32),
        resized=tf.cast(resized, tf.int32),
    )


def _reduce_window(image: Tensor, window: _Window) -> Tensor:
    """Reduces and crops a decoded image as libjpeg does while decoding."""
    ratio = tf.bitwise.left_shift(1, window.reduction)
    size = -(-tf.shape(image)[:2] // ratio)
    reduced = tf.cond(
        window.reduction > 0,
        lambda: reduce_uint8(image, size),
        lambda: image,
    )
    return tf.slice(reduced, tf.concat([window.begin, [0]], 0), tf.concat([window.size, [3]], 0))


def _place(
    pixels: Tensor,
    size: Tensor,
    window: _Window,
    canvas: tuple[int | Tensor, int | Tensor],
    flip: Tensor | bool,
) -> PlacedImage:
    """Resizes, mirrors and crops the decoded window, and computes its scale and offset."""
    height, width = canvas
    is_resized = tf.reduce_any(window.size != window.resized)
    pixels = tf.cond(
        is_resized, lambda: resize_uint8(pixels, window.resized, "bilinear"), lambda: pixels
    )
    flip = tf.convert_to_tensor(flip)
    # Mirrored here, where the image is smallest, and before its right edge is cropped.
    pixels = tf.cond(flip, lambda: tf.reverse(pixels, [1]), lambda: pixels)
    original_size = tf.cast(size, tf.float32)
    begin = tf.cast(window.begin, tf.float32) * window.decoded_pixel
    extent = tf.cast(window.size, tf.float32) * window.decoded_pixel
    scale = tf.cast(window.resized, tf.float32) / extent
    mirrored_begin = tf.stack([begin[0], original_size[1] - begin[1] - extent[1]])
    return PlacedImage(
        image=pixels[:height, :width],
        original_size=original_size,
        scale=scale,
        offset=tf.where(flip, mirrored_begin, begin) * scale,
    )
