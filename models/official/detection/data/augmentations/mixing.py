"""Augmentations that make one image of several: mosaic, mixup and copy-paste."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import has_area, remaining_boxes
from tpudet.detection.data.masks import concat_masks, pad_masks
from tpudet.detection.data.sample import Sample
from tpudet.trainkit.images.canvas import pad_image
from tpudet.trainkit.types import Tensor

# Of height and width: every image of a mosaic keeps at least a sixteenth of the canvas.
CENTRE_RANGE = (0.25, 0.75)
# Instances of which less is visible are removed, since nobody could name them: the share is of the
# box's area in a mosaic (as in YOLOv5), of the blend in mixup, of the mask's pixels in copy-paste.
MIN_SHARE = 0.1


class _Tile(NamedTuple):
    """The part of an image that a mosaic shows, and where; all [2] int32, y and x."""

    begin: Tensor  # in the image
    size: Tensor
    target: Tensor  # on the canvas
    before: Tensor  # empty pixels of the quarter above and to the left of the part
    after: Tensor  # and below and to the right


def mosaic(samples: Sequence[Sample], seed: Tensor, *, canvas_size: tuple[int, int]) -> Sample:
    """Puts four images around a centre drawn from the middle half of the canvas (arXiv 2004.10934).

    Order: upper left, upper right, lower left, lower right. Every image keeps the scale and the
    flip of its own record, so `scale_range` (0.5, 1.5) gives the scales of YOLOv5's mosaic. An
    image larger than its quarter is cropped at random; a smaller one touches the centre, and the
    rest of its quarter is 0.

    Args:
        samples: four.
        seed: [2].
        canvas_size: H and W; the size of the result.
    """
    canvas = tf.constant(canvas_size, tf.float32)
    draws = tf.random.stateless_uniform([5, 2], seed, alg="philox")
    low, high = CENTRE_RANGE
    centre = tf.cast(tf.round((low + draws[0] * (high - low)) * canvas), tf.int32)
    tiles = [
        _place(sample, centre, canvas_size, (quarter >= 2, quarter % 2 == 1), draws[1 + quarter])
        for quarter, sample in enumerate(samples)
    ]
    pairs = list(zip(samples, tiles, strict=True))
    masks = [_tile_masks(sample.masks, tile, canvas_size) for sample, tile in pairs]
    return samples[0]._replace(
        image=_join_quarters([_cut(sample.image, tile) for sample, tile in pairs]),
        boxes=tf.concat([_move_boxes(sample, tile) for sample, tile in pairs], 0),
        classes=tf.concat([sample.classes for sample in samples], 0),
        is_crowd=tf.concat([sample.is_crowd for sample in samples], 0),
        masks=concat_masks(masks),
    )


def _place(
    sample: Sample,
    centre: Tensor,
    canvas_size: tuple[int, int],
    is_far: tuple[bool, bool],
    position: Tensor,
) -> _Tile:
    """Places an image in a quarter of the canvas.

    Args:
        sample: the image.
        centre: [2] int32, where the four meet.
        canvas_size: H and W.
        is_far: whether the quarter is below, and right of, the centre.
        position: [2] in [0, 1), of the part shown among all possible ones.
    """
    quarter = tf.where(is_far, canvas_size - centre, centre)
    image_size = tf.shape(sample.image)[:2]
    size = tf.minimum(image_size, quarter)
    spare = image_size - size
    begin = tf.floor(position * (tf.cast(spare, tf.float32) + 1.0))
    empty = quarter - size
    return _Tile(
        begin=tf.minimum(tf.cast(begin, tf.int32), spare),
        size=size,
        target=tf.where(is_far, centre, centre - size),
        before=tf.where(is_far, 0, empty),
        after=tf.where(is_far, empty, 0),
    )


def _cut(pixels: Tensor, tile: _Tile) -> Tensor:
    """Returns the quarter, [qh, qw, c], with the visible part of `pixels` [h, w, c]."""
    channels = pixels.shape[-1]
    part = tf.slice(pixels, tf.concat([tile.begin, [0]], 0), tf.concat([tile.size, [channels]], 0))
    # Rows of bytes: `tf.pad` is half as fast where its last axis has three elements.
    rows = tf.reshape(part, [tile.size[0], tile.size[1] * channels])
    widths = tf.constant([1, channels])
    padded = tf.pad(rows, tf.stack([tile.before * widths, tile.after * widths], axis=-1))
    quarter = tile.size + tile.before + tile.after
    return tf.reshape(padded, [quarter[0], quarter[1], channels])


def _join_quarters(quarters: Sequence[Tensor]) -> Tensor:
    upper, lower = tf.concat(quarters[:2], 1), tf.concat(quarters[2:], 1)
    return tf.concat([upper, lower], 0)


def _tile_masks(masks: Tensor | None, tile: _Tile, canvas_size: tuple[int, int]) -> Tensor | None:
    """Returns the visible part of one image's masks [n, h, w] on the canvas, [n, H, W]."""
    if masks is None:
        return None
    begin, end = tile.begin, tile.begin + tile.size
    part = masks[:, begin[0] : end[0], begin[1] : end[1]]
    return pad_masks(part, *canvas_size, tile.target)


def _move_boxes(sample: Sample, tile: _Tile) -> Tensor:
    moved = tf.reshape(sample.boxes, [-1, 2, 2]) + tf.cast(tile.target - tile.begin, tf.float32)
    first = tf.cast(tile.target, tf.float32)
    last = first + tf.cast(tile.size, tf.float32)
    clipped = tf.reshape(tf.clip_by_value(moved, first, last), [-1, 4])
    return remaining_boxes(sample.boxes, clipped, _least_shares(sample.is_crowd))


def _least_shares(is_crowd: Tensor) -> Tensor:
    """Which share must be visible, [n]: of a region to ignore any, for nobody has to name it."""
    return tf.where(is_crowd, 0.0, MIN_SHARE)


def mixup(samples: Sequence[Sample], seed: Tensor, *, alpha: float) -> Sample:
    """Blends two images by a share drawn from Beta(alpha, alpha) (arXiv 1710.09412, 1902.04103).

    Both are aligned at the upper left; the result is as large as the larger on each axis, and a
    smaller image counts as 0 beyond its edges. It has the instances of both, which count fully
    whatever the share: a batch holds no weights.

    Args:
        samples: two.
        seed: [2].
        alpha: above 0; below 1 one image dominates, above 1 the shares are nearly equal.
    """
    gammas = tf.random.stateless_gamma([2], seed, tf.constant(alpha))
    # A tiny alpha may draw two zeros, which would give 0 / 0.
    share = gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)
    return blend(samples, share)


def blend(samples: Sequence[Sample], share: Tensor) -> Sample:
    """Blends two samples: `share`, [] float32 in [0, 1], of the first, the rest of the second."""
    first, second = samples
    height, width = tf.unstack(tf.maximum(tf.shape(first.image), tf.shape(second.image))[:2])
    shares = (share, 1.0 - share)
    images = [tf.cast(pad_image(sample.image, height, width), tf.float32) for sample in samples]
    mixed = images[0] * shares[0] + images[1] * shares[1]
    masks = [pad_masks(sample.masks, height, width) for sample in samples]
    visible = [
        tf.where(s >= MIN_SHARE, sample.boxes, 0.0)
        for s, sample in zip(shares, samples, strict=True)
    ]
    return first._replace(
        image=tf.cast(tf.round(mixed), tf.uint8),
        boxes=tf.concat(visible, 0),
        classes=tf.concat([first.classes, second.classes], 0),
        is_crowd=tf.concat([first.is_crowd, second.is_crowd], 0),
        masks=concat_masks(masks),
    )


def copy_paste(samples: Sequence[Sample], seed: Tensor, *, max_objects: int) -> Sample:
    """Pastes some objects of the second image onto the first at the same position (2012.07177).

    One to `max_objects` objects are drawn uniformly from those that are not crowds and have a box
    and pixels. Each image keeps the scale and flip of its record, so `scale_range` (0.1, 2.0) gives
    the paper's large-scale jitter. Edges are not blurred: the paper found no difference.

    Args:
        samples: the target and the source of the objects, both with masks.
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
    # Ranks in a random order in which the usable ones come first.
    rank = tf.argsort(tf.argsort(tf.where(usable, draws[1:], 2.0), stable=True))
    return paste(samples, usable & (rank < wanted))


def paste(samples: Sequence[Sample], chosen: Tensor) -> Sample:
    """Pastes the instances `chosen`, [n] bool, of the second sample onto the first.

    The box of a partly covered instance shrinks with its visible pixels; an instance of which less
    than `MIN_SHARE` stays visible is removed. The result is as large as the larger image.
    """
    target, source = samples
    height, width = tf.unstack(tf.maximum(tf.shape(target.image), tf.shape(source.image))[:2])
    images = [pad_image(sample.image, height, width) for sample in samples]
    before = pad_masks(target.masks, height, width)
    pasted = pad_masks(tf.boolean_mask(source.masks, chosen), height, width)
    is_covered = tf.reduce_max(pasted, axis=0) > 0
    after = tf.where(is_covered, tf.constant(0, tf.uint8), before)
    boxes = _visible_boxes(target.boxes, before, after, _least_shares(target.is_crowd))
    return target._replace(
        image=tf.where(is_covered[:, :, tf.newaxis], images[1], images[0]),
        boxes=tf.concat([boxes, tf.boolean_mask(source.boxes, chosen)], 0),
        classes=tf.concat([target.classes, tf.boolean_mask(source.classes, chosen)], 0),
        is_crowd=tf.concat([target.is_crowd, tf.boolean_mask(source.is_crowd, chosen)], 0),
        masks=tf.concat([after, pasted], 0),
    )


def _visible_boxes(boxes: Tensor, before: Tensor, after: Tensor, min_shares: Tensor) -> Tensor:
    """Moves each side of boxes [n, 4] as far as the mask's side moved, masks [n, h, w].

    Not to the mask's own extent: a box drawn wider than its mask keeps its margin, and instances
    without a mask keep their boxes.
    """
    pixels = [tf.reduce_sum(tf.cast(masks, tf.int32), [1, 2]) for masks in (before, after)]
    share = tf.cast(pixels[1], tf.float32) / tf.maximum(tf.cast(pixels[0], tf.float32), 1.0)
    shrunk = boxes + _extents(after) - _extents(before)
    is_visible = (share >= min_shares) & (pixels[1] > 0) & has_area(shrunk)
    visible = tf.where(is_visible[:, None], shrunk, 0.0)
    return tf.where((pixels[1] < pixels[0])[:, None], visible, boxes)


def _extents(masks: Tensor) -> Tensor:
    """Returns the bounding boxes, [n, 4] float32, of masks [n, h, w] that are not empty."""
    first, last = [], []
    for axis in (1, 2):
        marked = tf.reduce_max(masks, axis=3 - axis)
        backwards = tf.argmax(tf.reverse(marked, [1]), 1, tf.int32)
        first.append(tf.argmax(marked, 1, tf.int32))
        last.append(tf.shape(masks)[axis] - backwards)
    return tf.cast(tf.stack([*first, *last], axis=1), tf.float32)
