"""Copy-paste: objects cut out of another picture by their masks (arXiv 2012.07177)."""

from collections.abc import Sequence

import tensorflow as tf

from detection.data.canvas import pad_picture
from detection.data.sample import Sample, joined_instances, pad_instances
from detection.types import Tensor

# An object of whose pixels less than this is left shows nothing that one would name.
MIN_SHARE = 0.1


def copy_paste(samples: Sequence[Sample], seed: Tensor, *, max_objects: int) -> Sample:
    """Pastes some objects of the second picture onto the first, where they lie in their own.

    One to `max_objects` objects, evenly drawn, of those that are no crowds and have pixels. The
    scales and flips are those of both records, so `scale_range` (0.1, 2.0) gives the paper's
    large-scale jitter. Edges are not blurred, which the paper found to make no difference.

    Args:
        samples: the picture, and the one the objects come from; both with their map of instances.
        seed: [2].
        max_objects: above 0.
    """
    source = samples[1]
    count = tf.shape(source.boxes)[0]
    draws = tf.random.stateless_uniform(tf.stack([count + 1]), seed, alg="philox")
    usable = (instance_pixels(source.instances, count) > 0) & ~source.is_crowd
    limit = tf.minimum(tf.reduce_sum(tf.cast(usable, tf.int32)), max_objects)
    wanted = 1 + tf.cast(draws[0] * tf.cast(limit, tf.float32), tf.int32)
    # Places in a random order in which the usable ones come first.
    rank = tf.argsort(tf.argsort(tf.where(usable, draws[1:], 2.0), stable=True))
    return paste(samples, usable & (rank < wanted))


def paste(samples: Sequence[Sample], chosen: Tensor) -> Sample:
    """Pastes the instances `chosen`, [n] bool, of the second sample onto the first.

    The box of an instance that is partly covered becomes that of its visible pixels; one that is
    covered to less than `MIN_SHARE` gets none. The result is as large as the larger picture.
    """
    target, source = samples
    height, width = tf.unstack(tf.maximum(tf.shape(target.image), tf.shape(source.image))[:2])
    images = [pad_picture(sample.image, height, width) for sample in samples]
    below, above = (pad_instances(sample, height, width) for sample in samples)
    # The rows of the chosen ones among themselves, from 1; 0 for the others and for no instance.
    numbers = tf.where(chosen, tf.cumsum(tf.cast(chosen, tf.int32)), 0)
    above = tf.gather(tf.concat([[0], numbers], 0), above)
    count = tf.shape(target.boxes)[0]
    instances = joined_instances(below, above, first_count=count, second_on_top=True)
    return target._replace(
        image=tf.where(above[..., None] > 0, images[1], images[0]),
        boxes=tf.concat(
            [
                _visible_boxes(target.boxes, target.instances, instances),
                tf.boolean_mask(source.boxes, chosen),
            ],
            0,
        ),
        classes=tf.concat([target.classes, tf.boolean_mask(source.classes, chosen)], 0),
        is_crowd=tf.concat([target.is_crowd, tf.boolean_mask(source.is_crowd, chosen)], 0),
        instances=instances,
    )


def instance_pixels(instances: Tensor, count: Tensor) -> Tensor:
    """Returns the pixels, [count] int32, that a map [h, w] gives to each of `count` instances."""
    return tf.math.bincount(instances, minlength=count + 1, maxlength=count + 1)[1:]


def _visible_boxes(boxes: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Shrinks boxes [n, 4] to what is left of their pixels, where some were lost.

    Instances without a mask keep their boxes.
    """
    count = tf.shape(boxes)[0]
    pixels_before = instance_pixels(before, count)
    pixels = instance_pixels(after, count)
    places = tf.where((after > 0) & (after <= count))
    owners = tf.gather_nd(after, places) - 1
    places = tf.cast(places, tf.float32)
    first = tf.math.unsorted_segment_min(places, owners, count)
    last = tf.math.unsorted_segment_max(places + 1.0, owners, count)
    shrunk = tf.concat([tf.maximum(boxes[:, :2], first), tf.minimum(boxes[:, 2:], last)], 1)
    share = tf.cast(pixels, tf.float32) / tf.maximum(tf.cast(pixels_before, tf.float32), 1.0)
    visible = tf.where((share >= MIN_SHARE)[:, None], shrunk, 0.0)
    return tf.where((pixels < pixels_before)[:, None], visible, boxes)
