"""Random batches instead of records: for compilers, which need shapes, and for benchmarks."""

import numpy as np
import tensorflow as tf

from tpudet.detection.data.config import DataConfig
from tpudet.detection.types import Batch
from tpudet.trainkit.records import without_tuning

_INSTANCES = 8  # per image; COCO has 7


def empty_batch(data: DataConfig, *, batch_size: int, with_masks: bool) -> Batch:
    """Returns a batch of zeros; its pages are not in memory before they are written.

    Args:
        data: canvas and `max_instances`.
        batch_size: B.
        with_masks: whether the batch carries masks.
    """
    (height, width), instances = data.canvas_size, data.max_instances
    masks = np.zeros([batch_size, instances, height, width // 8], np.uint8) if with_masks else None
    return Batch(
        images=np.zeros([batch_size, height, width, 3], np.uint8),
        boxes=np.zeros([batch_size, instances, 4], np.float32),
        classes=np.zeros([batch_size, instances], np.int32),
        is_crowd=np.zeros([batch_size, instances], np.bool_),
        records=np.zeros([batch_size], np.int64),
        original_sizes=np.ones([batch_size, 2], np.float32),
        scales=np.ones([batch_size, 2], np.float32),
        offsets=np.zeros([batch_size, 2], np.float32),
        masks=masks,
    )


def random_batch(
    data: DataConfig, *, batch_size: int, with_masks: bool, num_classes: int, seed: int
) -> Batch:
    """Returns a batch of noise images with 8 boxes each, or `max_instances` if they are fewer.

    Args:
        data: as in `empty_batch`.
        batch_size: B.
        with_masks: whether the batch carries masks, which fill the left half of the canvas.
        num_classes: C.
        seed: of the numbers.
    """
    batch = empty_batch(data, batch_size=batch_size, with_masks=with_masks)
    generator, (height, width) = np.random.default_rng(seed), data.canvas_size
    batch.images[...] = generator.integers(0, 256, batch.images.shape, np.uint8)
    count = min(_INSTANCES, data.max_instances)
    corners = generator.uniform(0.0, 1.0, [batch_size, count, 2, 2])
    low, high = corners.min(axis=2) * 0.9, corners.max(axis=2) * 0.9 + 0.1
    batch.boxes[:, :count] = np.concatenate([low, high], axis=2) * [height, width, height, width]
    batch.classes[:, :count] = generator.integers(1, num_classes + 1, [batch_size, count])
    batch.original_sizes[...] = [height, width]
    if batch.masks is not None:
        batch.masks[:, :count, :, : width // 16] = 0xFF
    return batch


def synthetic_dataset(
    data: DataConfig, *, batch_size: int, with_masks: bool, num_classes: int, seed: int
) -> tf.data.Dataset:
    """Yields one batch of `random_batch` without end."""
    batch = random_batch(
        data, batch_size=batch_size, with_masks=with_masks, num_classes=num_classes, seed=seed
    )
    return without_tuning(tf.data.Dataset.from_tensors(batch).repeat().prefetch(2))
