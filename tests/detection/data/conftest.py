"""Samples by hand: images of one level with their boxes, without any file."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.sample import Sample


@pytest.fixture
def make_sample() -> Callable[..., Sample]:
    """Builds a sample; its class ids count from `first_class`, and masks fill their boxes."""

    def make(
        image: np.ndarray,
        boxes: Sequence[Sequence[float]] = (),
        *,
        with_masks: bool = False,
        first_class: int = 1,
        crowds: Sequence[int] = (),
    ) -> Sample:
        masks = np.zeros((len(boxes), *image.shape[:2]), np.uint8)
        for row, (y1, x1, y2, x2) in enumerate(np.array(boxes, int).reshape(-1, 4)):
            masks[row, y1:y2, x1:x2] = 1
        return Sample(
            image=tf.constant(image, tf.uint8),
            boxes=tf.reshape(tf.constant(boxes, tf.float32), [-1, 4]),
            classes=tf.range(len(boxes)) + first_class,
            is_crowd=tf.constant([row in crowds for row in range(len(boxes))], tf.bool),
            masks=tf.constant(masks) if with_masks else None,
            seed=tf.constant([0, 0], tf.int64),
            record=tf.constant(first_class, tf.int64),
            original_size=tf.constant(image.shape[:2], tf.float32),
            scale=tf.ones([2]),
            offset=tf.zeros([2]),
        )

    return make
