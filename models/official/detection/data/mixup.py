"""Mixup: two pictures blended (arXiv 1710.09412; for detection arXiv 1902.04103)."""

from collections.abc import Sequence

import tensorflow as tf

from detection.data.canvas import pad_picture
from detection.data.masks import join_masks, lay_masks
from detection.data.sample import Sample
from detection.types import Tensor

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
