"""Checks of a parsed record in the graph: its numbers of objects, their boxes and labels, its size.

Whatever reads records applies them, because columns of several records are joined: one value too
many or too few would give objects to other images.
"""

import numpy as np
import tensorflow as tf

from tpudet.detection.data.tfrecord import Example
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.types import Tensor

_INT32_MAX = np.iinfo(np.int32).max


def checked_example(example: Example, record: Tensor, num_classes: int | None = None) -> Example:
    """Adds checks, which name a record with unusable bytes or labels before it is decoded.

    Args:
        example: parsed.
        record: [] int64, its number in the set.
        num_classes: as for `checked_objects`.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs.
    """
    example = checked_objects(example, record, num_classes=num_classes)
    start = tf.strings.substr(example.encoded, 0, 2)
    is_image = tf.reduce_any(start == [b"\xff\xd8", b"\x89P"])
    fault = "The image of this record is neither JPEG nor PNG."
    check = tf.debugging.Assert(is_image, [fault, *_where(example, record)])
    with tf.control_dependencies([check]):
        return example._replace(encoded=tf.identity(example.encoded))


def checked_objects(
    example: Example,
    record: Tensor,
    *,
    num_classes: int | None = None,
    with_size: bool = False,
) -> Example:
    """Adds checks, which name a record whose columns are no objects of one image.

    Args:
        example: parsed.
        record: [] int64, its number in the set.
        num_classes: C; a label beyond it is an error. None checks only that labels fit into int32.
        with_size: also check the height and width that the record says.

    Returns:
        The example with its labels as int32.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs.
    """
    labels, where = example.labels, _where(example, record)
    columns = (example.boxes_normalized, labels, example.is_crowd, example.lacks_mask)
    counts = [tf.shape(column)[0] for column in (*columns, example.areas)]
    fault = "The numbers of boxes, class ids, crowd flags, mask flags and areas of a record differ:"
    are_even = tf.reduce_all(tf.stack(counts) == counts[0])
    checks = [tf.debugging.Assert(are_even, [fault, *counts, *where])]
    least, most = (-_INT32_MAX, _INT32_MAX) if num_classes is None else (1, num_classes)
    rows = "" if num_classes is None else ", the rows of classes.csv"
    known = tf.reduce_all((labels >= least) & (labels <= most))
    fault = f"A label of this record is not within {least}..{most}{rows}:"
    checks.append(tf.debugging.Assert(known, [fault, labels, *where]))
    numbers = tf.concat([tf.reshape(example.boxes_normalized, [-1]), example.areas], axis=0)
    fault = "A corner or the area of a box of this record is NaN or infinite:"
    are_finite = tf.reduce_all(tf.math.is_finite(numbers))
    checks.append(tf.debugging.Assert(are_finite, [fault, numbers, *where]))
    if with_size:
        size = tf.stack([example.height, example.width])
        fault = f"The height or width of this record is not within 1..{_INT32_MAX} pixels:"
        is_size = tf.reduce_all((size >= 1) & (size <= _INT32_MAX))
        checks.append(tf.debugging.Assert(is_size, [fault, size, *where]))
    with tf.control_dependencies(checks):
        # What joins columns waits for the checks.
        lacks_mask = tf.identity(example.lacks_mask)
        return example._replace(labels=tf.cast(labels, tf.int32), lacks_mask=lacks_mask)


def _where(example: Example, record: Tensor) -> list:
    return [
        "Shard index, record in shard, source_id (run check_data, write the shard again):",
        record // RECORDS_PER_SHARD_LIMIT,
        record % RECORDS_PER_SHARD_LIMIT,
        example.source_id,
    ]
