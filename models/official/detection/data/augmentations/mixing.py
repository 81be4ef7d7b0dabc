"""Copy-paste: objects cut out of another picture by their masks (arXiv 2012.07177)."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import has_area, remaining_boxes
from tpudet.detection.data.masks import join_masks, lay_masks
from tpudet.detection.data.sample import Sample
from tpudet.trainkit.images.canvas import pad_picture
from tpudet.trainkit.types import Tensor

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


# A picture with less of a share can hardly be seen, so its instances are left out.
MIN_SHARE = 0.1


def mixup(samples: Sequence[Sample], seed: Tensor, *, alpha: float) -> Sample:
    """Blends two pictures by a share drawn from Beta(alpha, alpha), with the instances of both.

    Both lie at the upper left; the result is as large as the larger on each axis, and where one
    ends it counts as 0. Instances count fully whatever the share: a batch holds no weights.

    Args:
        samples: the two.
        seed: [2].
        alpha: above 0; below 1 one of the two prevails, above 1 they are nearly equal.
    """
    gammas = tf.random.stateless_gamma([2], seed, tf.constant(alpha))
    # Two zeros, where alpha is tiny, would be no share at all.
    share = gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)
    return blend(samples, share)


def blend(samples: Sequence[Sample], share: Tensor) -> Sample:
    """Blends two samples: `share`, [] float32 in [0, 1], of the first, the rest of the second."""
    first, second = samples
    height, width = tf.unstack(tf.maximum(tf.shape(first.image), tf.shape(second.image))[:2])
    shares = (share, 1.0 - share)
    images = [tf.cast(pad_picture(sample.image, height, width), tf.float32) for sample in samples]
    mixed = images[0] * shares[0] + images[1] * shares[1]
    masks = [lay_masks(sample.masks, height, width) for sample in samples]
    seen = [
        tf.where(s >= MIN_SHARE, sample.boxes, 0.0)
        for s, sample in zip(shares, samples, strict=True)
    ]
    return first._replace(
        image=tf.cast(tf.round(mixed), tf.uint8),
        boxes=tf.concat(seen, 0),
        classes=tf.concat([first.classes, second.classes], 0),
        is_crowd=tf.concat([first.is_crowd, second.is_crowd], 0),
        masks=join_masks(masks),
    )


# An object of whose pixels less than this is left shows nothing that one would name.
MIN_SHARE = 0.1


def copy_paste(samples: Sequence[Sample], seed: Tensor, *, max_objects: int) -> Sample:
    """Pastes some objects of the second picture onto the first, where they lie in their own.

    One to `max_objects` objects, evenly drawn, of those that are no crowds and have a box and
    pixels. The scales and flips are those of both records, so `scale_range` (0.1, 2.0) gives the
    paper's large-scale jitter. Edges are not blurred, which the paper found to make no difference.

    Args:
        samples: the picture, and the one the objects come from; both with their masks.
        seed: [2].
        max_objects: above 0.
    """
    source = samples[1]
    assert source.masks is not None
    draws = tf.random.stateless_uniform(tf.shape(source.classes) + 1, seed, alg="philox")
    has_pixels = tf.reduce_max(source.masks, axis=[1, 2]) > 0
    usable = has_area(source.boxes) & has_pixels & ~source.is_crowd
    limit = tf.minimum(tf.reduce_sum(tf.cast(usable, tf.int32)), max_objects)
    wanted = 1 + tf.cast(draws[0] * tf.cast(limit, tf.float32), tf.int32)
    # Places in a random order in which the usable ones come first.
    rank = tf.argsort(tf.argsort(tf.where(usable, draws[1:], 2.0), stable=True))
    return paste(samples, usable & (rank < wanted))


def paste(samples: Sequence[Sample], chosen: Tensor) -> Sample:
    """Pastes the instances `chosen`, [n] bool, of the second sample onto the first.

    The box of an instance that is partly covered shrinks with its visible pixels; one that is
    covered to less than `MIN_SHARE` gets none. The result is as large as the larger picture.
    """
    target, source = samples
    height, width = tf.unstack(tf.maximum(tf.shape(target.image), tf.shape(source.image))[:2])
    images = [pad_picture(sample.image, height, width) for sample in samples]
    before = lay_masks(target.masks, height, width)
    pasted = lay_masks(tf.boolean_mask(source.masks, chosen), height, width)
    is_covered = tf.reduce_max(pasted, axis=0) > 0
    after = tf.where(is_covered, tf.constant(0, tf.uint8), before)
    boxes = _visible_boxes(target.boxes, before, after)
    return target._replace(
        image=tf.where(is_covered[:, :, tf.newaxis], images[1], images[0]),
        boxes=tf.concat([boxes, tf.boolean_mask(source.boxes, chosen)], 0),
        classes=tf.concat([target.classes, tf.boolean_mask(source.classes, chosen)], 0),
        is_crowd=tf.concat([target.is_crowd, tf.boolean_mask(source.is_crowd, chosen)], 0),
        masks=tf.concat([after, pasted], 0),
    )


def _visible_boxes(boxes: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Moves each side of boxes [n, 4] as far as the masks [n, h, w] were cut there.

    Not to the masks' own extent: a box that was drawn wider than its mask keeps what it is wider
    by, and instances without a mask keep their boxes.
    """
    pixels = [tf.reduce_sum(tf.cast(masks, tf.int32), [1, 2]) for masks in (before, after)]
    share = tf.cast(pixels[1], tf.float32) / tf.maximum(tf.cast(pixels[0], tf.float32), 1.0)
    shrunk = boxes + _extents(after) - _extents(before)
    is_visible = (share >= MIN_SHARE) & has_area(shrunk)
    visible = tf.where(is_visible[:, None], shrunk, 0.0)
    return tf.where((pixels[1] < pixels[0])[:, None], visible, boxes)


def _extents(masks: Tensor) -> Tensor:
    """Returns the boxes, [n, 4] float32, of the pixels of masks [n, h, w] that have some."""
    first, last = [], []
    for axis in (1, 2):
        marked = tf.reduce_max(masks, axis=3 - axis)
        backwards = tf.argmax(tf.reverse(marked, [1]), 1, tf.int32)
        first.append(tf.argmax(marked, 1, tf.int32))
        last.append(tf.shape(masks)[axis] - backwards)
    return tf.cast(tf.stack([*first, *last], axis=1), tf.float32)
