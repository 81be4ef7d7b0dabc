import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.postprocess import postprocess, top_pairs
from tpudet.detection.types import RawPredictions

CANVAS = (100, 120)


def reference(logits, deltas, anchors, threshold, iou_threshold, candidates, count):
    """One image, in NumPy, as the docstring of postprocess says."""
    num_classes = logits.shape[1]
    order = np.argsort(-logits.ravel(), kind="stable")[:candidates]
    rows, channels = order // num_classes, order % num_classes
    sizes = anchors[rows, 2:] - anchors[rows, :2]
    centers = anchors[rows, :2] + sizes / 2 + deltas[rows, :2] * sizes
    halves = np.exp(deltas[rows, 2:]) * sizes / 2
    boxes = np.concatenate([centers - halves, centers + halves], axis=1)
    boxes = np.clip(boxes, 0, [*CANVAS, *CANVAS])
    scores = 1 / (1 + np.exp(-logits.ravel()[order].astype(np.float64)))
    kept = []
    for index in range(len(order)):
        box = boxes[index]
        if scores[index] <= threshold or np.any(box[2:] <= box[:2]):
            continue
        others = [other for other in kept if channels[other] == channels[index]]
        overlaps = [0.0]
        for other in others:
            shared = np.minimum(box[2:], boxes[other, 2:]) - np.maximum(box[:2], boxes[other, :2])
            shared = np.prod(np.maximum(shared, 0))
            areas = [np.prod(b[2:] - b[:2]) for b in (box, boxes[other])]
            overlaps.append(shared / (sum(areas) - shared))
        if max(overlaps) <= iou_threshold:
            kept.append(index)
    kept = kept[:count]
    return boxes[kept], scores[kept], channels[kept] + 1


def random_case(batch, num_anchors, num_classes, seed=0, ties=True):
    rng = np.random.default_rng(seed)
    tops = rng.uniform(-20, 110, (num_anchors, 2))
    anchors = np.concatenate([tops, tops + rng.uniform(10, 40, (num_anchors, 2))], axis=1)
    logits = rng.normal(-2, 2, (batch, num_anchors, num_classes))
    if ties:
        logits = np.round(logits * 4) / 4
    deltas = rng.normal(0, 0.3, (batch, num_anchors, 4))
    return [x.astype(np.float32) for x in (logits, deltas, anchors)]


@pytest.mark.parametrize(
    ("batch", "num_anchors", "num_classes", "candidates", "count"),
    [(2, 60, 3, 100, 20), (3, 60, 3, 5000, 180), (1, 40, 500, 300, 50), (2, 50, 1, 20, 30)],
)
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_equals_the_reference(batch, num_anchors, num_classes, candidates, count, threshold):
    logits, deltas, anchors = random_case(batch, num_anchors, num_classes, seed=num_anchors)
    found = postprocess(
        RawPredictions(logits, deltas),
        anchors,
        canvas_size=CANVAS,
        score_threshold=threshold,
        iou_threshold=0.45,
        max_candidates=candidates,
        max_detections=count,
    )
    for image in range(batch):
        boxes, scores, classes = reference(
            logits[image], deltas[image], anchors, threshold, 0.45, candidates, count
        )
        valid = int(found.num_detections[image])
        assert valid == len(scores)
        np.testing.assert_array_equal(found.classes[image][:valid], classes)
        np.testing.assert_allclose(found.scores[image][:valid], scores, rtol=1e-5)
        np.testing.assert_allclose(found.boxes[image][:valid], boxes, atol=1e-4)
        for rows in (found.boxes, found.scores, found.classes):
            assert not np.any(np.array(rows)[image, valid:])


@pytest.mark.parametrize("shape", [(2, 30, 4), (1, 7, 300), (3, 400, 1)])
def test_top_pairs_is_a_stable_sort(shape):
    logits = np.round(np.random.default_rng(2).normal(0, 1, shape)).astype(np.float32)
    values, anchors, channels = top_pairs(logits, 50)
    order = np.argsort(-logits.reshape(shape[0], -1), axis=1, kind="stable")[:, :50]
    np.testing.assert_array_equal(np.array(anchors) * shape[2] + channels, order)
    np.testing.assert_array_equal(
        values, np.take_along_axis(logits.reshape(shape[0], -1), order, 1)
    )


def test_nothing_over_the_threshold():
    logits, deltas, anchors = random_case(2, 30, 2)
    found = postprocess(
        RawPredictions(logits, deltas),
        anchors,
        canvas_size=CANVAS,
        score_threshold=1.0,
        iou_threshold=0.5,
        max_candidates=5000,
        max_detections=100,
    )
    assert found.boxes.shape == (2, 100, 4)
    assert all(not np.any(rows) for rows in found[:4])


def test_traced_for_any_batch_equals_single_images():
    logits, deltas, anchors = random_case(3, 50, 4)
    settings = {
        "canvas_size": CANVAS,
        "score_threshold": 0.05,
        "iou_threshold": 0.5,
        "max_candidates": 80,
        "max_detections": 25,
    }

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 50, 4], tf.float32),
            tf.TensorSpec([None, 50, 4], tf.float32),
        ]
    )
    def traced(logits, deltas):
        return postprocess(RawPredictions(logits, deltas), anchors, **settings)

    batched = traced(logits, deltas)
    for image in range(3):
        single = traced(logits[image : image + 1], deltas[image : image + 1])
        for one, other in zip(single[:4], batched[:4], strict=True):
            np.testing.assert_array_equal(one[0], other[image])
