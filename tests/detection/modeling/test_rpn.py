from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.rpn import RPNHead, propose
from tpudet.detection.ops.boxes import encode_boxes
from tpudet.detection.types import RawPredictions

CANVAS = np.array([[0, 0, 32, 64]], np.float32)
# Two levels of three and two anchors.
ANCHORS = np.array(
    [[0, 0, 8, 8], [0, 4, 8, 12], [16, 16, 24, 24], [0, 0, 16, 16], [0, 2, 16, 18]], np.float32
)
SETTINGS = {
    "anchors_per_level": (3, 2),
    "iou_threshold": 0.3,
    "max_candidates": 10,
    "max_proposals": 4,
    "min_score": 0.0,
    "min_side": 0.0,
}


def propose_boxes(logits, boxes=ANCHORS, regions=CANVAS, **settings):
    predictions = RawPredictions(
        np.array(logits, np.float32)[None, :, None],
        np.array(encode_boxes(np.array(boxes, np.float32), ANCHORS))[None],
    )
    found = propose(predictions, ANCHORS, regions, **{**SETTINGS, **settings})
    boxes, valid = np.array(found.boxes)[0], np.array(found.valid)[0]
    assert not boxes[~valid].any()
    return boxes[valid]


def test_suppression_is_within_each_level_and_ranks_are_over_all():
    """Anchors 0 and 1 overlap by 1/3, 3 and 4 by 0.78; 0 and 3 do too, but on other levels."""
    found = propose_boxes([2, 3, 0, 1, 4])
    np.testing.assert_allclose(found, ANCHORS[[4, 1, 2]], atol=1e-4)
    found = propose_boxes([2, 3, 0, 1, 4], iou_threshold=0.5)
    np.testing.assert_allclose(found, ANCHORS[[4, 1, 0, 2]], atol=1e-4)
    found = propose_boxes([2, 3, 0, 1, 4], max_proposals=2)
    np.testing.assert_allclose(found, ANCHORS[[4, 1]], atol=1e-4)


def test_only_the_best_of_each_level_are_candidates():
    found = propose_boxes([2, 3, 5, 1, 0], max_candidates=1)
    np.testing.assert_allclose(found, ANCHORS[[2, 3]], atol=1e-4)


def test_anchors_of_a_low_score_are_dropped():
    """The sigmoid of 0 is 0.5, which is enough for 0.5; that of 1 is 0.731."""
    logits = [-0.1, 3, 0, 1, -4]
    found = propose_boxes(logits, min_score=0.5)
    np.testing.assert_allclose(found, ANCHORS[[1, 3, 2]], atol=1e-4)
    found = propose_boxes(logits, min_score=0.74)
    np.testing.assert_allclose(found, ANCHORS[[1]], atol=1e-4)


def test_boxes_are_clipped_and_small_ones_dropped():
    boxes = ANCHORS + np.array([[-4, 0, -4, 0], [0] * 4, [0] * 4, [0] * 4, [-16.5, 0, -16.5, 0]])
    found = propose_boxes([5, 4, 3, 2, 6], boxes)
    np.testing.assert_allclose(found[0], [0, 0, 4, 8], atol=1e-4)
    assert len(found) == 4  # the one wholly outside has no side left
    assert len(propose_boxes([5, 4, 3, 2, 6], boxes, min_side=4.5)) == 3
    # Of an image of 20 by 64 pixels, 4 rows of the third anchor are left.
    image = np.array([[0, 0, 20, 64]], np.float32)
    found = propose_boxes([5, 4, 7, 2, 6], boxes, regions=image)
    np.testing.assert_allclose(found[0], [16, 16, 20, 24], atol=1e-4)


def test_proposals_get_no_gradient():
    logits = tf.constant(np.zeros((1, 5, 1), np.float32))
    deltas = tf.constant(np.zeros((1, 5, 4), np.float32))
    with tf.GradientTape() as tape:
        tape.watch([logits, deltas])
        found = propose(RawPredictions(logits, deltas), ANCHORS, CANVAS, **SETTINGS)
        total = tf.reduce_sum(found.boxes)
    assert tape.gradient(total, [logits, deltas]) == [None, None]


def make_head(num_convs=1):
    head = RPNHead(anchors_per_location=2, num_convs=num_convs, num_filters=8)
    head.build((None, None, None, 5))
    return head


@pytest.mark.parametrize("num_convs", [0, 1, 2])
def test_paths_and_shapes(num_convs):
    head = make_head(num_convs)
    names = [f"conv{index}" for index in range(num_convs)] + ["object_predict", "box_predict"]
    assert [v.path for v in head.variables] == [
        f"rpn/{name}/{kind}" for name in names for kind in ("kernel", "bias")
    ]
    features = {level: np.ones((3, 8 >> level, 16 >> level, 5), np.float32) for level in (1, 2)}
    found = head(features)
    assert found.class_logits.shape == (3, (4 * 8 + 2 * 4) * 2, 1)
    assert found.box_deltas.shape == (3, (4 * 8 + 2 * 4) * 2, 4)


def test_order_is_that_of_the_anchors():
    """Level, row, column, anchor of the location: an impulse changes the anchors of its cell."""
    head = make_head(num_convs=0)
    quiet = {level: np.zeros((1, 8 >> level, 16 >> level, 5), np.float32) for level in (1, 2)}
    loud = {level: value.copy() for level, value in quiet.items()}
    loud[2][0, 1, 3] = 1.0
    before, after = head(quiet), head(loud)
    first = (4 * 8 + 1 * 4 + 3) * 2
    for one, other in zip(before[:2], after[:2], strict=True):
        moved = np.any(np.array(one) != np.array(other), axis=-1)[0]
        np.testing.assert_array_equal(np.flatnonzero(moved), [first, first + 1])


def test_the_gradient_of_a_bias_in_low_precision_is_a_sum_over_all_pixels():
    keras.config.set_dtype_policy("mixed_bfloat16")
    head = RPNHead(anchors_per_location=3, num_filters=8, num_convs=1)
    head.build((None, None, None, 8))
    features = {3: tf.ones((2, 40, 40, 8), tf.bfloat16)}
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(0.01 * found) for found in head(features)[:2]])
    biases = [predict.bias.value for predict in (head.object_predict, head.box_predict)]
    gradients: Any = tape.gradient(loss, biases)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.01 * 2 * 40 * 40, rtol=1e-4)
