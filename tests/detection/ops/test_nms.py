import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.nms import non_max_suppression


def reference(boxes, scores, classes, threshold, count):
    """Greedy suppression class by class, then the best of all classes; one image, NumPy."""

    def iou(a, b):
        height, width = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
        shared = height * width
        areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
        return shared / (areas[0] + areas[1] - shared)

    order = np.argsort(-scores, kind="stable")
    kept = []
    for label in np.unique(classes):
        chosen = []
        for row in order[classes[order] == label]:
            if np.isfinite(scores[row]) and all(
                iou(boxes[row], boxes[other]) <= threshold for other in chosen
            ):
                chosen.append(row)
        kept.extend(chosen)
    kept = sorted(kept, key=lambda row: (-scores[row], row))[:count]
    return np.array(kept + [-1] * (count - len(kept)))


def random_case(seed, batch, rows, num_classes):
    rng = np.random.default_rng(seed)
    # Few positions, sizes and scores: many identical boxes and many ties.
    tops = rng.integers(0, 12, (batch, rows, 2)) * 4.0
    sizes = rng.integers(1, 5, (batch, rows, 2)) * 8.0
    boxes = np.concatenate([tops, tops + sizes], axis=-1).astype(np.float32)
    scores = (rng.integers(0, 20, (batch, rows)) / 20).astype(np.float32)
    scores[scores == 0] = -np.inf
    scores[(scores == 0.5) | (scores == 0.45)] = [0.0]
    scores[scores == 0] *= rng.choice([-1, 1], np.sum(scores == 0))  # -0.0 equals 0.0
    return boxes, scores, rng.integers(0, num_classes, (batch, rows)).astype(np.int32)


@pytest.mark.parametrize(
    ("batch", "rows", "num_classes", "count"),
    # The last ones take several blocks of candidates.
    [(1, 150, 1, 20), (3, 150, 3, 150), (5, 200, 500, 60), (2, 7, 2, 10), (2, 600, 60, 500)],
)
@pytest.mark.parametrize("threshold", [0.3, 0.5])
def test_equals_the_reference(batch, rows, num_classes, count, threshold):
    boxes, scores, classes = random_case(rows + batch, batch, rows, num_classes)
    found = non_max_suppression(
        boxes, scores, classes, iou_threshold=threshold, max_detections=count
    )
    expected = [
        reference(boxes[image], scores[image], classes[image], threshold, count)
        for image in range(batch)
    ]
    np.testing.assert_array_equal(found, expected)


def test_dropped_rows_drop_nothing():
    # A drops B, B overlaps C, A does not: C stays.
    boxes = np.array([[[0, 0, 10, 10], [0, 4, 10, 14], [0, 8, 10, 18]]], np.float32)
    scores = np.array([[0.9, 0.8, 0.7]], np.float32)
    found = non_max_suppression(
        boxes, scores, np.zeros((1, 3), np.int32), iou_threshold=0.4, max_detections=3
    )
    np.testing.assert_array_equal(found, [[0, 2, -1]])


def test_of_a_chain_every_second_row_stays():
    """Each box overlaps its neighbours alone, so what is kept hangs on all rows before it."""
    count = 300
    starts = 4.0 * np.arange(count, dtype=np.float32)
    boxes = np.stack([0 * starts, starts, 0 * starts + 10, starts + 10], axis=-1)[None]
    scores = np.linspace(1, 0.1, count, dtype=np.float32)[None]
    found = non_max_suppression(
        boxes, scores, np.zeros((1, count), np.int32), iou_threshold=0.4, max_detections=200
    )
    np.testing.assert_array_equal(found[0][:150], np.arange(0, count, 2))
    np.testing.assert_array_equal(found[0][150:], np.full(50, -1))


def test_no_candidates():
    found = non_max_suppression(
        np.zeros((2, 4, 4), np.float32),
        np.full((2, 4), -np.inf, np.float32),
        np.zeros((2, 4), np.int32),
        iou_threshold=0.5,
        max_detections=3,
    )
    np.testing.assert_array_equal(found, np.full((2, 3), -1))


def test_traced_for_any_batch_size_equals_eager():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 60, 4], tf.float32),
            tf.TensorSpec([None, 60], tf.float32),
            tf.TensorSpec([None, 60], tf.int32),
        ]
    )
    def traced(boxes, scores, classes):
        return non_max_suppression(boxes, scores, classes, iou_threshold=0.5, max_detections=30)

    for batch in (1, 4):
        case = random_case(batch, batch, 60, 4)
        eager = non_max_suppression(*case, iou_threshold=0.5, max_detections=30)
        np.testing.assert_array_equal(traced(*map(tf.constant, case)), eager)
