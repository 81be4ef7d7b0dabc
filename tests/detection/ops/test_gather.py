import numpy as np
import tensorflow as tf

from tpudet.detection.ops.gather import gather_rows


def test_equals_indexing_image_by_image():
    rng = np.random.default_rng(0)
    for shape, rows_shape in (((3, 5), (3, 4)), ((2, 6, 4), (2, 3, 2)), ((1, 4, 2, 3), (1, 7))):
        values = rng.normal(size=shape).astype(np.float32)
        rows = rng.integers(0, shape[1], rows_shape)
        expected = np.stack([value[row] for value, row in zip(values, rows, strict=True)])
        np.testing.assert_array_equal(gather_rows(values, rows), expected)


def test_any_batch_size_when_traced():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3, 2], tf.float32),
            tf.TensorSpec([None, 2], tf.int32),
        ]
    )
    def traced(values, rows):
        return gather_rows(values, rows)

    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    rows = np.array([[2, 0]] * 4, np.int32)
    np.testing.assert_array_equal(traced(values, rows), values[:, [2, 0]])
    np.testing.assert_array_equal(traced(values[:1], rows[:1]), values[:1, [2, 0]])
