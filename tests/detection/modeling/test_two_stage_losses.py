import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.modeling.two_stage_losses import box_head_losses, mask_loss, rpn_losses
from tpudet.detection.ops.boxes import encode_boxes
from tpudet.detection.ops.matching import Matches
from tpudet.detection.ops.sampling import Draw, SampledRois
from tpudet.detection.types import RawPredictions

WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def smooth_l1(difference, beta):
    difference = abs(difference)
    return difference - beta / 2 if difference >= beta else difference**2 / (2 * beta)


@pytest.mark.parametrize("beta", [0.0, 1 / 9, 1.0])
def test_rpn_losses_by_the_plain_statement(beta):
    rng = np.random.default_rng(0)
    tops = rng.uniform(0, 20, (6, 2))
    anchors = np.concatenate([tops, tops + rng.uniform(4, 9, (6, 2))], axis=-1).astype(np.float32)
    boxes = (anchors + rng.uniform(-1, 1, (2, 6, 4))).astype(np.float32)
    logits = rng.normal(size=(2, 6, 1)).astype(np.float32)
    deltas = rng.normal(0, 0.3, (2, 6, 4)).astype(np.float32)
    rows = np.array([[4, 1, 0], [2, 5, 0]])
    positive = np.array([[True, True, False], [True, False, False]])
    valid = np.array([[True, True, True], [True, True, False]])
    found = rpn_losses(
        RawPredictions(logits, deltas),
        anchors,
        Matches(np.zeros((2, 6), np.int32), boxes),
        Draw(rows, positive, valid),
        6.0,
        beta=beta,
    )
    objectness, box = 0.0, 0.0
    for image, slot in np.ndindex(2, 3):
        if not valid[image, slot]:
            continue
        row = rows[image, slot]
        probability = 1 / (1 + math.exp(-logits[image, row, 0]))
        if not positive[image, slot]:
            objectness -= math.log(1 - probability)
            continue
        objectness -= math.log(probability)
        target = np.array(encode_boxes(boxes[image, row], anchors[row]))
        box += sum(smooth_l1(d, beta) for d in deltas[image, row] - target)
    np.testing.assert_allclose(found, [objectness / 6, box / 6], rtol=1e-4)


def make_rois():
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 20], [5, 5, 9, 9], [0, 0, 0, 0]]], np.float32)
    return SampledRois(
        boxes=boxes,
        classes=np.array([[2, 3, 0, -1]], np.int32),
        instances=np.zeros((1, 4), np.int32),
        matched_boxes=np.array([[[0, 0, 10, 10], [0, 0, 10, 10], [0] * 4, [0] * 4]], np.float32),
    )


def test_box_head_losses_by_hand():
    logits = np.zeros((1, 4, 4), np.float32)
    logits[0, 0] = [0, 0, math.log(3), 0]  # the target's probability is 3 / 6
    logits[0, 3] = [50, -50, 0, 0]  # unused
    deltas = np.full((1, 4, 3, 4), 100, np.float32)
    deltas[0, 0, 1] = [0.5, 0, 0, 0]  # the target is 0
    # Of half the width around a centre a quarter of the width further left.
    deltas[0, 1, 2] = [0, -2.5, 0, 5 * math.log(0.5) + 2]
    found = box_head_losses(
        BoxPredictions(logits, deltas), make_rois(), 3.0, box_weights=WEIGHTS, beta=1.0
    )
    np.testing.assert_allclose(found[0], (math.log(2) + 2 * math.log(4)) / 3, rtol=1e-6)
    np.testing.assert_allclose(found[1], (0.125 + 1.5) / 3, rtol=1e-5)


def test_deltas_that_all_classes_share():
    deltas = np.zeros((1, 4, 1, 4), np.float32)
    deltas[0, 0, 0] = [3, 0, 0, 0]
    deltas[0, 1, 0] = [0, -2.5, 0, 5 * math.log(0.5)]
    logits = np.zeros((1, 4, 4), np.float32)
    found = box_head_losses(
        BoxPredictions(logits, deltas), make_rois(), 1.0, box_weights=WEIGHTS, beta=1.0
    )
    np.testing.assert_allclose(found[1], 2.5, rtol=1e-5)


def test_unused_regions_and_other_classes_have_no_gradient_and_all_are_finite():
    rng = np.random.default_rng(0)
    predictions = BoxPredictions(
        tf.constant(rng.normal(size=(1, 4, 4)).astype(np.float32)),
        tf.constant(rng.normal(size=(1, 4, 3, 4)).astype(np.float32)),
    )
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        losses = box_head_losses(predictions, make_rois(), 3.0, box_weights=WEIGHTS, beta=0.0)
        total = losses[0] + losses[1]
    gradients: Any = tape.gradient(total, predictions)
    moved = np.any(np.array(gradients.class_logits) != 0, axis=-1)[0]
    np.testing.assert_array_equal(moved, [True, True, True, False])
    moved = np.any(np.array(gradients.box_deltas) != 0, axis=-1)[0]
    expected = np.zeros((4, 3), bool)
    expected[0, 1] = expected[1, 2] = True
    np.testing.assert_array_equal(moved, expected)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients)


def test_mask_loss_by_hand():
    logits = np.zeros((1, 3, 2, 2), np.float32)
    logits[0, 0] = [[math.log(3), 0], [0, 0]]  # one pixel's probability is 3 / 4
    logits[0, 2] = 1000.0
    targets = np.ones((1, 3, 2, 2), np.float32)
    targets[0, 1] = 0.0
    targets[0, 2] = 0.0
    counted = np.array([[True, True, False]])
    found = mask_loss(logits, targets, counted)
    expected = (math.log(4 / 3) + 3 * math.log(2)) / 4 + math.log(2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
