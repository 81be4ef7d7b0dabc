"""Random batches instead of records: for compilers, which need shapes, and for dry runs."""

import numpy as np
import tensorflow as tf

from tpudet.classification.types import Batch
from tpudet.trainkit.records import without_tuning


def empty_batch(image_size: tuple[int, int], *, batch_size: int, num_classes: int) -> Batch:
    """Returns a batch of zeros; its pages are not in memory before they are written.

    Args:
        image_size: H and W.
        batch_size: B.
        num_classes: C.
    """
    return Batch(
        images=np.zeros([batch_size, *image_size, 3], np.uint8),
        targets=np.zeros([batch_size, num_classes], np.float32),
        records=np.zeros([batch_size], np.int64),
    )


def random_batch(
    image_size: tuple[int, int], *, batch_size: int, num_classes: int, seed: int
) -> Batch:
    """Returns a batch of noise images, each of one class.

    Args:
        image_size: H and W.
        batch_size: B.
        num_classes: C.
        seed: of the numbers.
    """
    batch = empty_batch(image_size, batch_size=batch_size, num_classes=num_classes)
    generator = np.random.default_rng(seed)
    batch.images[...] = generator.integers(0, 256, batch.images.shape, np.uint8)
    batch.targets[np.arange(batch_size), generator.integers(0, num_classes, batch_size)] = 1.0
    return batch


def synthetic_dataset(
    image_size: tuple[int, int], *, batch_size: int, num_classes: int, seed: int
) -> tf.data.Dataset:
    """Yields one batch of `random_batch` without end."""
    batch = random_batch(image_size, batch_size=batch_size, num_classes=num_classes, seed=seed)
    return without_tuning(tf.data.Dataset.from_tensors(batch).repeat().prefetch(2))
