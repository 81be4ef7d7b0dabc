"""Windows of a CT: Hounsfield units to the three bytes of a pixel, rounded once."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudet.trainkit.images.crops import Part
from tpudet.trainkit.types import Tensor

_BIAS = 32768.0  # added to stored values in a record's PNG


def decode_windows(
    encoded: Tensor,
    rescale: Tensor,
    choose: Callable[[Tensor], Part],
    height: int,
    width: int,
    *,
    windows: Sequence[tuple[float, float]],
    move: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Decodes a part of a slice at a fixed size, one channel a window, [height, width, C] uint8.

    Resized in float32, then mapped from centre - width / 2 .. centre + width / 2 to 0..255.

    Args:
        encoded: [] string, the PNG of a record.
        rescale: [2] float32, slope and intercept.
        choose: from the size of the slice, [2] int32, to the part.
        height: of the result, pixels.
        width: of the result, pixels.
        windows: centre and width of each, Hounsfield units.
        move: of the whole slice, [h, w, 1] float32, before the part is taken; what it leaves empty
            must be 0, the lowest value.
    """
    values = tf.cast(tf.io.decode_png(encoded, channels=1, dtype=tf.uint16), tf.float32)
    if move is not None:
        values = move(values)
    part = choose(tf.shape(values)[:2])
    values = tf.slice(
        values, tf.concat([part.begin, [0]], axis=0), tf.concat([part.size, [1]], axis=0)
    )
    # Where the part is larger, areas are averaged, so that nothing aliases.
    shrinks = tf.reduce_all(part.size >= [height, width])
    resized = tf.cond(
        shrinks,
        lambda: tf.image.resize(values, [height, width], "area"),
        lambda: tf.image.resize(values, [height, width], "bilinear"),
    )
    units = (resized - _BIAS) * rescale[0] + rescale[1]
    lowest = tf.constant([center - size / 2.0 for center, size in windows])
    sizes = tf.constant([float(size) for _, size in windows])
    shares = tf.clip_by_value((units - lowest) / sizes, 0.0, 1.0)
    pixels = tf.cast(shares * 255.0 + 0.5, tf.uint8)
    return tf.ensure_shape(pixels, [height, width, len(windows)])
