import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.postprocess import postprocess, top_pairs
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.detection.types import Batch, RawPredictions

CANVAS = (100, 120)


def whole_canvas(batch):
    return np.tile(np.array([0, 0, *CANVAS], np.float32), (batch, 1))


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
        whole_canvas(len(logits)),
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


def test_only_the_best_of_each_level_are_candidates():
    # Anchors far apart: 0 to 2 on the first level, 3 on the second; one class.
    anchors = np.array([[0, x, 9, x + 9] for x in (0, 20, 40, 60)], np.float32)
    logits = np.array([[[3.0], [4.0], [2.0], [1.0]]], np.float32)
    settings: dict[str, Any] = {
        "score_threshold": 0.0,
        "iou_threshold": 0.5,
        "max_detections": 4,
        "anchors_per_level": (3, 1),
    }
    deltas = np.zeros((1, 4, 4), np.float32)
    for limits, expected in (((2, 9), [20, 0, 60]), ((2, 2), [20, 0]), ((None, 3), [20, 0, 40])):
        found = postprocess(
            RawPredictions(logits, deltas),
            anchors,
            whole_canvas(1),
            max_candidates_per_level=limits[0],
            max_candidates=limits[1],
            **settings,
        )
        count = int(found.num_detections[0])
        np.testing.assert_allclose(np.asarray(found.boxes)[0, :count, 1], expected)


def test_classes_suppress_each_other_where_they_are_told_to():
    """And of one anchor the best class alone is left."""
    anchors = np.array([[0, 0, 20, 20], [0, 2, 20, 22], [60, 60, 80, 80]], np.float32)
    logits = np.array([[[3, 2], [0, 4], [1, -9]]], np.float32)
    settings: dict[str, Any] = {
        "score_threshold": 0.05,
        "iou_threshold": 0.5,
        "max_candidates": 6,
        "max_detections": 5,
    }
    raw = RawPredictions(logits, np.zeros((1, 3, 4), np.float32))
    for agnostic, classes, best in ((False, [2, 1, 1], [4, 3, 1]), (True, [2, 1], [4, 1])):
        found = postprocess(raw, anchors, whole_canvas(1), class_agnostic=agnostic, **settings)
        count = int(found.num_detections[0])
        assert np.asarray(found.classes)[0, :count].tolist() == classes
        expected = 1 / (1 + np.exp(-np.array(best, np.float64)))
        np.testing.assert_allclose(np.asarray(found.scores)[0, :count], expected, rtol=1e-6)


def test_centerness_is_a_factor_of_the_scores_of_candidates():
    """Of two boxes upon each other the more central one stays, and the threshold is before it."""
    anchors = np.array([[0, x, 10, x + 10] for x in (0, 1, 40, 80)], np.float32)
    logits = np.log([[[4.0], [1.5], [1.0], [0.25]]])  # scores 0.8, 0.6, 0.5 and 0.2
    central = np.log([[0.25, 4.0, 0.25, 99.0]])  # 0.2, 0.8, 0.2 and 0.99
    found = postprocess(
        RawPredictions(logits.astype("f4"), np.zeros((1, 4, 4), "f4"), central.astype("f4")),
        anchors,
        whole_canvas(1),
        score_threshold=0.3,
        iou_threshold=0.5,
        max_candidates=4,
        max_detections=4,
    )
    assert found.num_detections.numpy().tolist() == [2]
    np.testing.assert_allclose(found.scores[0][:2], [0.48, 0.1], rtol=1e-5)
    np.testing.assert_array_equal(found.boxes[0][:2], anchors[1:3])


def test_nothing_over_the_threshold():
    logits, deltas, anchors = random_case(2, 30, 2)
    found = postprocess(
        RawPredictions(logits, deltas),
        anchors,
        whole_canvas(len(logits)),
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
        regions = tf.repeat(tf.constant(whole_canvas(1)), tf.shape(logits)[0], axis=0)
        return postprocess(RawPredictions(logits, deltas), anchors, regions, **settings)

    batched = traced(logits, deltas)
    for image in range(3):
        single = traced(logits[image : image + 1], deltas[image : image + 1])
        for one, other in zip(single[:4], batched[:4], strict=True):
            np.testing.assert_array_equal(one[0], other[image])


def test_boxes_in_the_padding_of_the_canvas_do_not_count():
    """N7: two of four lie beside the image; one that reaches into it is cut at its border."""
    anchors = np.array([[10, 10, 30, 30], [70, 10, 90, 30], [10, 90, 20, 110], [50, 0, 70, 20]])
    found = postprocess(
        RawPredictions(np.array([[[1.0], [4.0], [3.0], [2.0]]], "f4"), np.zeros((1, 4, 4), "f4")),
        anchors.astype(np.float32),
        np.array([[0, 0, 60.5, 80]], np.float32),
        score_threshold=0.0,
        iou_threshold=0.5,
        max_candidates=4,
        max_detections=4,
    )
    assert found.num_detections.numpy().tolist() == [2]
    np.testing.assert_array_equal(found.boxes[0][:2], [[50, 0, 60.5, 20], [10, 10, 30, 30]])


def test_a_cut_box_suppresses_by_what_is_seen_of_it():
    """The two agree within the image and not in the padding: one detection, not two."""
    anchors = np.array([[40, 0, 60, 20], [40, 0, 100, 20]], np.float32)
    settings: Any = {"score_threshold": 0.0, "iou_threshold": 0.5}
    settings |= {"max_candidates": 2, "max_detections": 2}
    predictions = RawPredictions(np.array([[[2.0], [1.0]]], "f4"), np.zeros((1, 2, 4), "f4"))
    region = np.array([[0, 0, 60, 80]], np.float32)
    assert postprocess(predictions, anchors, region, **settings).num_detections[0] == 1
    assert postprocess(predictions, anchors, whole_canvas(1), **settings).num_detections[0] == 2


def test_the_task_clips_to_what_its_batch_says_of_the_images():
    """An image of 30x40 pixels, scaled by 2 onto a canvas of 100x120."""
    anchors = np.array([[0, 0, 100, 120], [70, 90, 90, 110]], np.float32)
    logits, deltas = np.zeros((1, 2, 1), np.float32), np.zeros((1, 2, 4), np.float32)
    settings: Any = {"score_threshold": 0.0, "iou_threshold": 0.5}
    make_task: Any = RetinaNetTask  # of parts that this test does not need
    model: Any = lambda images, training: RawPredictions(logits, deltas)  # noqa: E731
    model.pixel_mean = (0.5, 0.5, 0.5)
    task = make_task(
        model=model,
        anchors=anchors,
        sum_over_replicas=lambda value: value,
        match=None,
        class_loss=None,
        box_loss=None,
        box_loss_weight=1.0,
        loss_normalization=None,
        padding="black",
        postprocess=functools.partial(postprocess, **settings, max_candidates=2, max_detections=2),
    )
    pair = np.full((1, 2), 2.0, np.float32)
    sizes = np.array([[30, 40]], np.float32)
    images = np.zeros((1, *CANVAS, 3), np.uint8)
    found = task.predict(Batch(images, None, None, None, None, sizes, pair, 0 * pair))
    assert found.num_detections.numpy().tolist() == [1]
    np.testing.assert_array_equal(found.boxes[0][0], [0, 0, 60, 80])
