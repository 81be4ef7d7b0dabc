"""Copy-paste: objects cut out of another picture by their masks (arXiv 2012.07177)."""

from collections.abc import Sequence

import tensorflow as tf

from detection.data.canvas import has_area, pad_picture
from detection.data.masks import lay_masks
from detection.data.sample import Sample
from detection.types import Tensor

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
