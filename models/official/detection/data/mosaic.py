"""Mosaic: four pictures around a random centre (YOLOv4, arXiv 2004.10934)."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.data.masks import join_masks, lay_masks
from detection.data.sample import Sample, remaining_boxes
from detection.types import Tensor

# Of height and width: every picture keeps at least a sixteenth of the canvas.
CENTRE_RANGE = (0.25, 0.75)
# An instance of which the crop leaves less shows nothing that one would name; as in YOLOv5.
MIN_SHARE = 0.1


class _Placing(NamedTuple):
    """Which part of a picture is shown and where on the canvas; all [2] int32, y and x."""

    begin: Tensor  # in the picture
    size: Tensor
    target: Tensor  # on the canvas
    before: Tensor  # pixels of the quarter that stay empty above and to the left of the part
    after: Tensor  # and below and to the right


def mosaic(samples: Sequence[Sample], seed: Tensor, *, canvas_size: tuple[int, int]) -> Sample:
    """Lays four pictures around a centre drawn from the middle half of the canvas.

    Order: upper left, upper right, lower left, lower right. Every picture keeps the scale and the
    flip of its own record, so `scale_range` (0.5, 1.5) gives the scales of YOLOv5's mosaic. Of a
    picture larger than its quarter a random part is shown; a smaller one lies against the centre,
    and the rest of its quarter is 0 as the canvas is where no picture lies.

    Args:
        samples: the four.
        seed: [2].
        canvas_size: H and W; the size of the result.
    """
    canvas = tf.constant(canvas_size, tf.float32)
    draws = tf.random.stateless_uniform([5, 2], seed, alg="philox")
    low, high = CENTRE_RANGE
    centre = tf.cast(tf.round((low + draws[0] * (high - low)) * canvas), tf.int32)
    placings = [
        _place(sample, centre, canvas_size, (quarter >= 2, quarter % 2 == 1), draws[1 + quarter])
        for quarter, sample in enumerate(samples)
    ]
    pairs = list(zip(samples, placings, strict=True))
    masks = [_lay_masks(sample.masks, placing, canvas_size) for sample, placing in pairs]
    return samples[0]._replace(
        image=_lay([_cut(sample.image, placing) for sample, placing in pairs]),
        boxes=tf.concat([_move_boxes(sample.boxes, placing) for sample, placing in pairs], 0),
        classes=tf.concat([sample.classes for sample in samples], 0),
        is_crowd=tf.concat([sample.is_crowd for sample in samples], 0),
        masks=join_masks(masks),
    )


def _place(
    sample: Sample,
    centre: Tensor,
    canvas_size: tuple[int, int],
    is_far: tuple[bool, bool],
    position: Tensor,
) -> _Placing:
    """Places a picture in a quarter, which `is_far` says is below (y) or right of (x) the centre.

    `position`, [2] in [0, 1), is the place of the part shown among all possible ones.
    """
    quarter = tf.where(is_far, canvas_size - centre, centre)
    picture = tf.shape(sample.image)[:2]
    size = tf.minimum(picture, quarter)
    free = tf.cast(picture - size, tf.float32)
    begin = tf.minimum(tf.cast(tf.floor(position * (free + 1.0)), tf.int32), picture - size)
    empty = quarter - size
    return _Placing(
        begin=begin,
        size=size,
        target=tf.where(is_far, centre, centre - size),
        before=tf.where(is_far, 0, empty),
        after=tf.where(is_far, empty, 0),
    )


def _cut(pixels: Tensor, placing: _Placing) -> Tensor:
    """Returns the quarter, [qh, qw, c], with the part of `pixels` [h, w, c] that it shows."""
    channels = pixels.shape[-1]
    part = tf.slice(
        pixels, tf.concat([placing.begin, [0]], 0), tf.concat([placing.size, [channels]], 0)
    )
    # Rows of bytes: `tf.pad` is half as fast where its last axis has three elements.
    rows = tf.reshape(part, [placing.size[0], placing.size[1] * channels])
    widths = tf.constant([1, channels])
    padded = tf.pad(rows, tf.stack([placing.before * widths, placing.after * widths], axis=-1))
    quarter = placing.size + placing.before + placing.after
    return tf.reshape(padded, [quarter[0], quarter[1], channels])


def _lay(quarters: Sequence[Tensor]) -> Tensor:
    upper, lower = tf.concat(quarters[:2], 1), tf.concat(quarters[2:], 1)
    return tf.concat([upper, lower], 0)


def _lay_masks(
    masks: Tensor | None, placing: _Placing, canvas_size: tuple[int, int]
) -> Tensor | None:
    """Returns [n, H, W] with what is shown of the masks of one picture, [n, h, w]."""
    if masks is None:
        return None
    begin, end = placing.begin, placing.begin + placing.size
    part = masks[:, begin[0] : end[0], begin[1] : end[1]]
    return lay_masks(part, *canvas_size, placing.target)


def _move_boxes(boxes: Tensor, placing: _Placing) -> Tensor:
    moved = tf.reshape(boxes, [-1, 2, 2]) + tf.cast(placing.target - placing.begin, tf.float32)
    first = tf.cast(placing.target, tf.float32)
    last = first + tf.cast(placing.size, tf.float32)
    clipped = tf.reshape(tf.clip_by_value(moved, first, last), [-1, 4])
    return remaining_boxes(boxes, clipped, MIN_SHARE)
