"""Targets of a record."""

import numpy as np
import tensorflow as tf

from tpudet.classification.data.record import Example
from tpudet.classification.data.samples import build_targets


def targets(labels: list[int] | np.ndarray, num_classes: int) -> np.ndarray:
    example = Example(tf.constant(b""), tf.constant(labels, tf.int32), tf.constant(b""))
    return build_targets(example, tf.constant(0, tf.int64), num_classes, may_lack=True).numpy()


def test_a_class_is_1_however_often_it_is_named() -> None:
    np.testing.assert_array_equal(targets([3, 1, 3], 4), [1, 0, 1, 0])
    np.testing.assert_array_equal(targets([], 4), np.zeros(4, np.float32))


def test_a_million_labels_take_no_row_each() -> None:
    """A record of 1 MB; as rows they would be 400 GB."""
    found = targets(np.repeat([2, 100_000], 500_000), 100_000)
    np.testing.assert_array_equal(np.flatnonzero(found), [1, 99_999])
    assert found.max() == 1
