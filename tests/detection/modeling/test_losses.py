from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.modeling.losses import focal_loss, huber_box_loss


def focal_reference(logits, targets, normalizer, alpha, gamma):
    """Equation 5 of arXiv 1708.02002 in float64, on a one-hot; log p by logaddexp."""
    logits = logits.astype(np.float64)
    is_target = targets[..., None] == np.arange(1, logits.shape[-1] + 1)
    log_right = -np.logaddexp(0, np.where(is_target, -logits, logits))
    log_wrong = -np.logaddexp(0, np.where(is_target, logits, -logits))
    weight = np.where(is_target, alpha, 1 - alpha) * (targets != -1)[..., None]
    return np.sum(weight * np.exp(gamma * log_wrong) * -log_right) / normalizer


def focal_and_gradient(logits, targets, normalizer=3.0, **settings):
    logits = tf.constant(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = focal_loss(logits, tf.constant(targets), normalizer, **settings)
    return float(loss), tape.gradient(loss, logits).numpy()


@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 1.5), (0.4, 0.0), (0.25, 2.0)])
def test_focal_loss_and_gradient_equal_float64(alpha, gamma):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (2, 9, 5))
    logits[0, :5] = [[-100], [100], [0], [30], [-30]]
    logits = logits.astype(np.float32)
    targets = rng.integers(-1, 6, (2, 9)).astype(np.int32)
    targets[0, :5] = [1, 2, 3, 4, 0]
    loss, gradient = focal_and_gradient(logits, targets, alpha=alpha, gamma=gamma)
    arguments = (targets, 3.0, alpha, gamma)
    np.testing.assert_allclose(loss, focal_reference(logits, *arguments), rtol=1e-5)
    step = 1e-4
    for index in np.ndindex(logits.shape):
        shift = np.zeros(logits.shape)
        shift[index] = step
        up, down = (focal_reference(logits + s * shift, *arguments) for s in (1, -1))
        np.testing.assert_allclose(gradient[index], (up - down) / (2 * step), rtol=1e-3, atol=1e-6)


def test_hardest_positive_and_negative_by_hand():
    # p is 0 at -100: the loss of a missing class is nothing, of the right one alpha * 100, with
    # slope -alpha. At 100 the other way round with 1 - alpha.
    for logit, target, loss, slope in [
        (-100.0, 1, 0.25 * 100, -0.25),
        (100.0, 0, 0.75 * 100, 0.75),
        (100.0, 1, 0.0, 0.0),
        (-100.0, 0, 0.0, 0.0),
        (100.0, -1, 0.0, 0.0),
    ]:
        found, gradient = focal_and_gradient([[[logit]]], [[target]], normalizer=1.0)
        np.testing.assert_allclose(found, loss, atol=1e-6)
        np.testing.assert_allclose(gradient, [[[slope]]], atol=1e-6)


def test_focal_loss_traced_equals_eager_and_leaves_ignored_out():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (1, 6, 4)).astype(np.float32)
    targets = np.array([[0, 2, -1, 4, -1, 1]], np.int32)
    loss, gradient = focal_and_gradient(logits, targets)
    traced_loss, traced_gradient = tf.function(
        lambda x: (focal_loss(x, targets, 3.0), tf.gradients(focal_loss(x, targets, 3.0), x)[0])
    )(tf.constant(logits))
    np.testing.assert_allclose(traced_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(traced_gradient, gradient, rtol=1e-6)
    assert np.all(gradient[0, [2, 4]] == 0)
    counted, _ = focal_and_gradient(logits[:, [0, 1, 3, 5]], targets[:, [0, 1, 3, 5]])
    np.testing.assert_allclose(loss, counted, rtol=1e-6)


def test_huber_by_hand_and_only_where_positive():
    deltas = tf.constant([[[0.05, -0.1, 0.3, 0.0], [9.0, 9.0, 9.0, 9.0]]])
    with tf.GradientTape() as tape:
        tape.watch(deltas)
        loss = huber_box_loss(
            deltas, tf.zeros((1, 2, 4)), tf.constant([[True, False]]), 2.0, delta=0.1
        )
    # 0.05**2 / 2 + 0.1**2 / 2 + 0.1 * (0.3 - 0.05), over 4 * 2. A target of 0 counts.
    np.testing.assert_allclose(loss, (0.00125 + 0.005 + 0.025) / 8, rtol=1e-6)
    expected = np.array([[[0.05, -0.1, 0.1, 0.0], [0.0] * 4]]) / 8
    gradient: Any = tape.gradient(loss, deltas)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
