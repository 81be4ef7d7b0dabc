"""Losses per image, by hand."""

import math

import numpy as np
import pytest

from tpudet.classification.modeling.losses import sigmoid_loss, softmax_loss

LOGITS = np.array([[0.0, 0.0], [math.log(3), 0.0]], np.float32)  # probabilities 1/2 1/2, 3/4 1/4


def test_softmax_loss_with_and_without_smoothing() -> None:
    targets = np.array([[1, 0], [1, 0]], np.float32)
    plain = np.asarray(softmax_loss(LOGITS, targets, label_smoothing=0.0))
    np.testing.assert_allclose(plain, [math.log(2), math.log(4 / 3)], rtol=1e-6)
    # 0.2 smoothed over two classes: targets 0.9 and 0.1.
    smoothed = np.asarray(softmax_loss(LOGITS, targets, label_smoothing=0.2))
    np.testing.assert_allclose(smoothed[1], 0.9 * math.log(4 / 3) + 0.1 * math.log(4), rtol=1e-6)


def test_a_mixed_image_has_the_mixed_loss_and_one_without_label_none() -> None:
    targets = np.array([[0.25, 0.75], [0, 0]], np.float32)
    loss = np.asarray(softmax_loss(LOGITS[[1, 1]], targets, label_smoothing=0.1))
    assert loss[1] == 0
    smooth = 0.9 * targets[0] + 0.05
    assert loss[0] == pytest.approx(smooth[0] * math.log(4 / 3) + smooth[1] * math.log(4))


def test_sigmoid_loss_is_the_weighted_mean_and_finite_for_large_logits() -> None:
    targets = np.array([[1, 0], [0, 1]], np.float32)
    loss = np.asarray(sigmoid_loss(LOGITS, targets, class_weights=(2.0, 1.0)))
    np.testing.assert_allclose(loss, [math.log(2), (2 * math.log(4) + math.log(2)) / 3], rtol=1e-6)
    large = np.array([[1000.0, -1000.0]], np.float32)
    np.testing.assert_allclose(np.asarray(sigmoid_loss(large, targets[:1], class_weights=())), [0])
