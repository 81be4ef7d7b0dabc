from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.losses import (
    centerness_loss,
    huber_box_loss,
    l1_box_loss,
    overlap_box_loss,
    smooth_l1_box_loss,
)
from tpudet.detection.ops.boxes import decode_boxes, encode_boxes

ANCHORS = np.array([[0, 0, 10, 10], [20, 20, 60, 40]], np.float32)


def loss_and_gradient(function, deltas, boxes=None, positive=(True, False), **settings):
    deltas = tf.constant(deltas, tf.float32)
    boxes = ANCHORS[None] if boxes is None else boxes  # all targets 0
    with tf.GradientTape() as tape:
        tape.watch(deltas)
        loss = function(deltas, boxes, ANCHORS, np.array([positive]), 2.0, **settings)
    return float(loss), np.array(tape.gradient(loss, deltas))


def test_huber_by_hand_and_only_where_positive():
    deltas = [[[0.05, -0.1, 0.3, 0.0], [9.0, 9.0, 9.0, 9.0]]]
    loss, gradient = loss_and_gradient(huber_box_loss, deltas, delta=0.1)
    # 0.05**2 / 2 + 0.1**2 / 2 + 0.1 * (0.3 - 0.05), over 4 * 2. A target of 0 counts.
    np.testing.assert_allclose(loss, (0.00125 + 0.005 + 0.025) / 8, rtol=1e-6)
    expected = np.array([[[0.05, -0.1, 0.1, 0.0], [0.0] * 4]]) / 8
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_smooth_l1_by_hand():
    deltas = [[[0.05, -0.1, 0.3, 0.0], [9.0, 9.0, 9.0, 9.0]]]
    loss, gradient = loss_and_gradient(smooth_l1_box_loss, deltas, beta=0.1)
    # 0.05**2 / 0.2 + 0.1**2 / 0.2 + 0.3 - 0.05, over 4 * 2.
    np.testing.assert_allclose(loss, (0.0125 + 0.05 + 0.25) / 8, rtol=1e-6)
    expected = np.array([[[0.5, -1.0, 1.0, 0.0], [0.0] * 4]]) / 8
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_l1_by_hand_with_a_normaliser_for_each_image():
    deltas = tf.constant([[[0.2, -0.4, 0.0, 0.1], [9.0] * 4]] * 2)
    positive, boxes = np.array([[True, False]] * 2), np.stack([ANCHORS] * 2)
    loss = l1_box_loss(deltas, boxes, ANCHORS, positive, tf.constant([2.0, 5.0]))
    np.testing.assert_allclose(loss, 0.7 / 4 / 2 + 0.7 / 4 / 5, rtol=1e-6)
    huber = huber_box_loss(deltas, boxes, ANCHORS, positive, tf.constant([2.0, 5.0]), delta=1.0)
    # (0.2**2 + 0.4**2 + 0.1**2) / 2 of each.
    np.testing.assert_allclose(huber, 0.105 / 4 / 2 + 0.105 / 4 / 5, rtol=1e-6)


def test_boxes_count_by_their_weights():
    deltas = tf.constant([[[0.2, -0.4, 0.0, 0.1], [1.0] * 4]])
    loss = l1_box_loss(deltas, ANCHORS[None], ANCHORS, np.array([[0.25, 0.5]], "f4"), 0.75)
    np.testing.assert_allclose(loss, (0.25 * 0.7 / 4 + 0.5) / 0.75, rtol=1e-6)


def test_centerness_loss_by_hand():
    """At the logit of its target the slope is 0; elsewhere it is the difference of the two."""
    logits = tf.constant([[np.log(3.0), 0.0, 9.0]], tf.float32)  # of 0.75, 0.5 and one not counted
    targets = np.array([[0.75, 1.0, 0.0]], np.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = centerness_loss(logits, targets, np.array([[True, True, False]]), 2.0)
    entropy = -0.75 * np.log(0.75) - 0.25 * np.log(0.25)
    np.testing.assert_allclose(loss, (entropy + np.log(2.0)) / 2, rtol=1e-6)
    gradient: Any = tape.gradient(loss, logits)
    np.testing.assert_allclose(gradient, [[0, -0.25, 0]], atol=1e-7)


def test_overlap_loss_by_hand():
    # The anchor as it is around an object of 30 of its 100 pixels, and a box equal to its object.
    boxes = np.array([[[2.5, 2, 7.5, 8], [25, 20, 45, 40]]], np.float32)
    deltas = np.array(encode_boxes(boxes, ANCHORS))
    deltas[0, 0] = 0
    loss, gradient = loss_and_gradient(
        overlap_box_loss, deltas, boxes, positive=(True, True), kind="iou"
    )
    np.testing.assert_allclose(loss, 0.7 / 2, atol=1e-6)
    # 1 - 30 / (100 * exp(th) * exp(tw)), wherever the object lies within; over 2.
    np.testing.assert_allclose(gradient[0, 0], [0, 0, 0.15, 0.15], atol=1e-6)


@pytest.mark.parametrize("kind", ["iou", "giou", "diou", "ciou"])
def test_descent_on_an_overlap_loss_finds_the_box(kind):
    """From IoUs of 0.09 and 0.52 to over 0.95, in 1000 steps."""
    boxes = np.array([[[4, 4, 20, 24], [25, 22, 70, 45]]], np.float32)
    deltas = tf.Variable(tf.zeros((1, 2, 4)))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            positive = tf.constant([[True, True]])
            loss = overlap_box_loss(deltas, boxes, ANCHORS, positive, 2.0, kind=kind)
        gradient: Any = tape.gradient(loss, deltas)
        deltas.assign_sub(0.01 * gradient)
        return loss

    losses = [float(step()) for _ in range(1000)]
    assert losses[-1] < 0.05 < 0.6 < losses[0]
    np.testing.assert_allclose(decode_boxes(deltas.numpy(), ANCHORS), boxes, atol=1.5)


@pytest.mark.parametrize("size", [1e3, 1e30])
@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (huber_box_loss, {"delta": 0.1}),
        (smooth_l1_box_loss, {"beta": 0.1}),
        *((overlap_box_loss, {"kind": kind}) for kind in ("iou", "giou", "diou", "ciou")),
    ],
)
def test_finite_for_any_deltas(function, settings, size):
    rng = np.random.default_rng(0)
    boxes = np.array([[[0, 0, 1e-3, 1e-3], [-600, 0, 600, 1]]], np.float32)
    for _ in range(8):
        deltas = rng.choice([-size, 0, size, 1.0], (1, 2, 4))
        for positive in ((True, True), (False, False)):
            loss, gradient = loss_and_gradient(
                function, deltas, boxes, positive=positive, **settings
            )
            assert np.isfinite(loss)
            assert np.all(np.isfinite(gradient))
            if not any(positive):
                assert loss == 0
                np.testing.assert_array_equal(gradient, 0)
