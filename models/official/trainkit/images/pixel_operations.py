"""Pixel operations on images [h, w, 3] uint8 that move nothing.

Bit for bit as in Pillow 13, truncation included: `equalize`, `auto_contrast`, `posterize` and
`solarize` of ImageOps; `change_color`, `change_contrast`, `change_brightness` and
`change_sharpness` of ImageEnhance.

TensorFlow broadcasts over a last axis of three channels many times more slowly than over a row, so
some operations work on rows of bytes [h, 3w], or on one channel per row.
`benchmarks/input_pipeline.py --augmentations KIND...` measures what augmentations cost.
"""

import tensorflow as tf

from tpudet.trainkit.types import Tensor

FILL = 128  # for unknown pixels: the middle of the range, near the mean of most images

# ITU-R 601-2 luma in Pillow's fixed point. The sums stay below 2**24, so float32 is exact.
_LUMA = (19595.0, 38470.0, 7471.0)
_LUMA_ONE = 65536.0


def auto_contrast(image: Tensor) -> Tensor:
    """Stretches each channel to 0..255; a constant channel stays."""
    lowest = tf.cast(tf.reduce_min(image, [0, 1]), tf.float64)[:, None]
    highest = tf.cast(tf.reduce_max(image, [0, 1]), tf.float64)[:, None]
    levels = tf.range(256, dtype=tf.float64)
    scale = 255.0 / tf.maximum(highest - lowest, 1.0)
    # Not (levels - lowest) * scale: Pillow rounds twice before its int() truncates.
    stretched = tf.clip_by_value(tf.floor(levels * scale - lowest * scale), 0.0, 255.0)
    return _look_up(image, tf.where(highest > lowest, stretched, levels))


def equalize(image: Tensor) -> Tensor:
    """Equalizes the histogram of each channel.

    A channel with too few pixels below its greatest value for a step of 1 stays as it is.
    """
    channels = tf.cast(tf.transpose(tf.reshape(image, [-1, 3])), tf.int32)  # [3, hw]
    counts = tf.math.bincount(channels, minlength=256, maxlength=256, axis=-1)
    highest = tf.reduce_max(channels, axis=1, keepdims=True)
    last = tf.gather(counts, tf.maximum(highest, 0), batch_dims=1)
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - last) // 255
    before = tf.cumsum(counts, axis=1, exclusive=True) + step // 2
    spread = tf.minimum(before // tf.maximum(step, 1), 255)
    return _look_up(image, tf.where(step > 0, spread, tf.range(256)))


def posterize(image: Tensor, bits: Tensor | float) -> Tensor:
    """Keeps the upper bits of each value.

    Args:
        image: [h, w, 3] uint8.
        bits: [] an integer in 0..8; 8 changes nothing.
    """
    dropped = tf.bitwise.left_shift(1, 8 - tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(image, tf.cast(256 - dropped, tf.uint8))


def solarize(image: Tensor, threshold: Tensor | float) -> Tensor:
    """Inverts values at or above the threshold.

    Args:
        image: [h, w, 3] uint8.
        threshold: [] in 0..256; 256 changes nothing.
    """
    is_below = tf.cast(image, tf.float32) < tf.cast(threshold, tf.float32)
    return tf.where(is_below, image, tf.bitwise.invert(image))


def solarize_add(image: Tensor, addition: Tensor | float) -> Tensor:
    """Adds to values below 128, up to 255. Not in Pillow.

    Args:
        image: [h, w, 3] uint8.
        addition: [] an integer in 0..255; 0 changes nothing.
    """
    added = tf.cast(addition, tf.uint8)
    return tf.where(image < FILL, tf.minimum(image, 255 - added) + added, image)


def change_brightness(image: Tensor, factor: Tensor | float) -> Tensor:
    """Scales all values; factor >= 0, 0 is black, 1 changes nothing."""
    return _blend(tf.zeros([]), image, factor)


def change_contrast(image: Tensor, factor: Tensor | float) -> Tensor:
    """Moves values away from the mean luma; factor >= 0, 0 is flat, 1 changes nothing."""
    # float32 would be inexact above 65,000 pixels.
    luma = tf.cast(_luma(image, channels=1), tf.int64)
    mean = tf.reduce_mean(tf.cast(luma, tf.float64))
    return _blend(tf.cast(tf.floor(mean + 0.5), tf.float32), image, factor)


def change_color(image: Tensor, factor: Tensor | float) -> Tensor:
    """Moves colours away from grey; factor >= 0, 0 is grey, 1 changes nothing."""
    return _blend(_luma(image, channels=3), image, factor)


def change_sharpness(image: Tensor, factor: Tensor | float) -> Tensor:
    """Moves values away from the smoothed image.

    The border of one pixel stays, as does an image with a side below 3.

    Args:
        image: [h, w, 3] uint8.
        factor: at least 0; 0 smooths with the kernel 1 1 1, 1 5 1, 1 1 1; 1 changes nothing.
    """
    shape = tf.shape(image)
    rows = tf.cast(tf.reshape(image, [shape[0], -1]), tf.float32)
    center = rows[1:-1, 3:-3]
    columns = rows[:-2] + rows[1:-1] + rows[2:]
    total = columns[:, :-6] + columns[:, 3:-3] + columns[:, 6:] + 4.0 * center
    smoothing = tf.pad(tf.floor(total / 13.0 + 0.5) - center, [[1, 1], [3, 3]])
    # With a side below 3 there is only padding, and more of it than the image has pixels.
    smooth = rows + tf.slice(smoothing, [0, 0], tf.shape(rows))
    return _blend(tf.reshape(smooth, shape), image, factor)


def turn_hue(image: Tensor, turns: Tensor | float) -> Tensor:
    """Rotates the hue of HSV; 1 is a whole turn, 0 changes nothing."""
    turned = tf.image.adjust_hue(tf.cast(image, tf.float32) / 255.0, turns)
    return tf.cast(turned * 255.0 + 0.5, tf.uint8)


def jitter_colors(
    image: Tensor,
    seed: Tensor,
    *,
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
) -> Tensor:
    """Changes brightness, contrast, saturation and hue in this order; an amount of 0 costs nothing.

    Args:
        image: [h, w, 3] uint8.
        seed: [2] int, which determines all choices.
        brightness: 0..1; the factor is uniform in 1 - x .. 1 + x, as for the next two.
        contrast: 0..1.
        saturation: 0..1.
        hue: 0..0.5; the turn is uniform in -x .. x, where 1 is a whole turn.
    """
    draws = tf.random.stateless_uniform([4], seed, -1.0, 1.0, alg="philox")
    if brightness:
        image = change_brightness(image, 1.0 + brightness * draws[0])
    if contrast:
        image = change_contrast(image, 1.0 + contrast * draws[1])
    if saturation:
        image = change_color(image, 1.0 + saturation * draws[2])
    if hue:
        image = turn_hue(image, hue * draws[3])
    return image


def fill_crossing(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Sets pixels to `FILL` where a marked row crosses a marked column.

    Args:
        image: [h, w, 3] uint8.
        rows: [h] bool.
        columns: [w] bool.
    """
    shape = tf.shape(image)
    flat = tf.reshape(image, [shape[0], -1])
    row_bits = tf.cast(rows, tf.uint8)[:, None] * 255
    column_bits = tf.cast(tf.repeat(columns, 3), tf.uint8)[None] * 255
    marked = tf.bitwise.bitwise_and(row_bits, column_bits)
    kept = tf.bitwise.bitwise_and(flat, tf.bitwise.invert(marked))
    filled = tf.bitwise.bitwise_and(marked, tf.constant(FILL, tf.uint8))
    return tf.reshape(tf.bitwise.bitwise_or(kept, filled), shape)


def _blend(degenerate: Tensor, image: Tensor, factor: Tensor | float) -> Tensor:
    """Pillow's `Image.blend`: `degenerate` at 0, the image at 1, extrapolated above; truncated."""
    mixed = degenerate + factor * (tf.cast(image, tf.float32) - degenerate)
    return tf.cast(tf.clip_by_value(mixed, 0.0, 255.0), tf.uint8)


def _luma(image: Tensor, *, channels: int) -> Tensor:
    """Returns the luma rounded to integers, float32 [h, w, channels], equal in all channels."""
    weights = tf.constant([[weight] * channels for weight in _LUMA])
    total = tf.cast(image, tf.float32) @ weights
    return tf.floor((total + _LUMA_ONE / 2) / _LUMA_ONE)


def _look_up(image: Tensor, tables: Tensor) -> Tensor:
    """Maps each value through its channel's table, [3, 256]."""
    indices = tf.cast(tf.transpose(tf.reshape(image, [-1, 3])), tf.int32)
    indices += tf.constant([[0], [256], [512]])
    values = tf.gather(tf.cast(tf.reshape(tables, [-1]), tf.uint8), indices)
    return tf.reshape(tf.transpose(values), tf.shape(image))
