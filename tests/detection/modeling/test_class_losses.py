from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.losses import focal_loss, quality_focal_loss, varifocal_loss


def cross_entropy(logits, targets):
    return np.logaddexp(0, logits) - targets * logits


def focal_reference(logits, is_target, quality, *, alpha, gamma, label_smoothing):
    """Equation 5 of arXiv 1708.02002; the smoothed targets only within the cross-entropy."""
    log_wrong = -np.logaddexp(0, np.where(is_target, logits, -logits))
    smoothed = is_target * (1 - label_smoothing) + label_smoothing / 2
    weight = np.where(is_target, alpha, 1 - alpha)
    return weight * np.exp(gamma * log_wrong) * cross_entropy(logits, smoothed)


def quality_focal_reference(logits, is_target, quality, *, beta):
    """Equation 2 of arXiv 2006.04388."""
    targets = is_target * quality
    return np.abs(targets - 1 / (1 + np.exp(-logits))) ** beta * cross_entropy(logits, targets)


def varifocal_reference(logits, is_target, quality, *, alpha, gamma):
    """Equation 2 of arXiv 2008.13367."""
    targets = is_target * quality
    weight = np.where(targets > 0, targets, alpha * (1 / (1 + np.exp(-logits))) ** gamma)
    return weight * cross_entropy(logits, targets)


DEFAULTS = {  # of the config
    focal_loss: {"alpha": 0.25, "gamma": 1.5, "label_smoothing": 0.0},
    quality_focal_loss: {"beta": 2.0},
    varifocal_loss: {"alpha": 0.75, "gamma": 2.0},
}
REFERENCES = {
    focal_loss: focal_reference,
    quality_focal_loss: quality_focal_reference,
    varifocal_loss: varifocal_reference,
}
SETTINGS = [
    (focal_loss, {}),
    (focal_loss, {"alpha": 0.4, "gamma": 0.0}),
    (focal_loss, {"gamma": 2.0, "label_smoothing": 0.1}),
    (quality_focal_loss, {}),
    (quality_focal_loss, {"beta": 1.0}),
    (varifocal_loss, {}),
    (varifocal_loss, {"alpha": 0.3, "gamma": 0.0}),
]


def reference(function, logits, targets, quality, normalizer, settings):
    """The loss in float64, on a one-hot."""
    is_target = targets[..., None] == np.arange(1, logits.shape[-1] + 1)
    logits, quality = logits.astype(np.float64), quality.astype(np.float64)
    settings = DEFAULTS[function] | settings
    costs = REFERENCES[function](logits, is_target, quality[..., None], **settings)
    return np.sum(costs * (targets != -1)[..., None]) / normalizer


def loss_and_gradient(function, logits, targets, quality=None, normalizer=3.0, **settings):
    settings = DEFAULTS[function] | settings
    logits = tf.constant(logits, tf.float32)
    quality = np.ones(np.shape(targets), np.float32) if quality is None else quality
    quality = tf.constant(quality, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch((logits, quality))
        loss = function(logits, tf.constant(targets), quality, normalizer, **settings)
    gradients: Any = tape.gradient(loss, (logits, quality))
    by_logits, by_quality = gradients
    assert by_quality is None or not np.any(by_quality)
    return float(loss), np.array(by_logits)


@pytest.mark.parametrize(("function", "settings"), SETTINGS)
def test_loss_and_gradient_equal_float64(function, settings):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 4, (2, 9, 5))
    logits[0, :5] = [[-100], [100], [0], [30], [-30]]
    logits = logits.astype(np.float32)
    targets = rng.integers(-1, 6, (2, 9)).astype(np.int32)
    targets[0, :5] = [1, 2, 3, 4, 0]
    quality = rng.uniform(0, 1, (2, 9)).astype(np.float32)
    quality[1, :3], targets[1, :3] = [0, 1, 0.5], 2
    loss, gradient = loss_and_gradient(function, logits, targets, quality, **settings)
    arguments = (targets, quality, 3.0, settings)
    np.testing.assert_allclose(loss, reference(function, logits, *arguments), rtol=1e-5)
    step = 1e-4
    for index in np.ndindex(logits.shape):
        shift = np.zeros(logits.shape)
        shift[index] = step
        up, down = (reference(function, logits + s * shift, *arguments) for s in (1, -1))
        np.testing.assert_allclose(gradient[index], (up - down) / (2 * step), rtol=1e-3, atol=1e-6)


# Loss and slope of one logit. p is 0 at -100 and 1 at 100, so -log p and -log(1 - p) are 0 and 100.
@pytest.mark.parametrize(
    ("function", "logit", "target", "quality", "loss", "slope"),
    [
        # A right class costs alpha * 100 with slope -alpha, a wrong one (1 - alpha) * 100.
        (focal_loss, -100.0, 1, 1.0, 0.25 * 100, -0.25),
        (focal_loss, 100.0, 0, 1.0, 0.75 * 100, 0.75),
        (focal_loss, 100.0, 1, 1.0, 0.0, 0.0),
        (focal_loss, -100.0, 0, 1.0, 0.0, 0.0),
        (focal_loss, 100.0, -1, 1.0, 0.0, 0.0),
        # 0.5**2 * 50 and 0.5**2 * 0.5: the score is half off, either way.
        (quality_focal_loss, -100.0, 1, 0.5, 0.25 * 50, -0.25 * 0.5),
        (quality_focal_loss, 100.0, 1, 0.5, 0.25 * 50, 0.25 * 0.5),
        (quality_focal_loss, 0.0, 1, 0.5, 0.0, 0.0),
        (quality_focal_loss, 100.0, 0, 0.5, 100, 1.0),
        (quality_focal_loss, -100.0, 1, 0.0, 0.0, 0.0),
        # quality * cross-entropy, not modulated; alpha only where nothing is.
        (varifocal_loss, -100.0, 1, 0.5, 0.5 * 50, -0.5 * 0.5),
        (varifocal_loss, 0.0, 1, 0.5, 0.5 * np.log(2), 0.0),
        (varifocal_loss, 100.0, 0, 0.5, 0.75 * 100, 0.75),
        (varifocal_loss, 100.0, 1, 0.0, 0.75 * 100, 0.75),
    ],
)
def test_one_logit_by_hand(function, logit, target, quality, loss, slope):
    found, gradient = loss_and_gradient(function, [[[logit]]], [[target]], [[quality]], 1.0)
    np.testing.assert_allclose(found, loss, atol=1e-5)
    np.testing.assert_allclose(gradient, [[[slope]]], atol=1e-6)


def test_label_smoothing_by_hand():
    # At logit 0 the cross-entropy is log 2 whatever the target; its slope moves by half of 0.2.
    one, slope = loss_and_gradient(
        focal_loss, [[[0.0]]], [[1]], normalizer=1.0, alpha=0.25, gamma=0.0, label_smoothing=0.2
    )
    np.testing.assert_allclose(one, 0.25 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(slope, 0.25 * (0.5 - 0.9), rtol=1e-6)


@pytest.mark.parametrize(("function", "settings"), SETTINGS)
def test_finite_for_any_finite_logit(function, settings):
    logits = np.array([1e30, -1e30, 1e4, -1e4, 0.0], np.float32).reshape(1, 5, 1)
    for target in (0, 1, -1):
        for quality in (0.0, 0.3, 1.0):
            loss, gradient = loss_and_gradient(
                function, logits, [[target] * 5], [[quality] * 5], **settings
            )
            assert np.isfinite(loss)
            assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("function", REFERENCES)
def test_traced_equals_eager_and_leaves_ignored_out(function):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (1, 6, 4)).astype(np.float32)
    targets = np.array([[0, 2, -1, 4, -1, 1]], np.int32)
    quality = rng.uniform(0, 1, (1, 6)).astype(np.float32)
    loss, gradient = loss_and_gradient(function, logits, targets, quality)

    @tf.function
    def traced(logits):
        loss = function(logits, targets, quality, 3.0, **DEFAULTS[function])
        return loss, tf.gradients(loss, logits)[0]

    traced_loss, traced_gradient = traced(tf.constant(logits))
    np.testing.assert_allclose(traced_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(traced_gradient, gradient, rtol=1e-5, atol=1e-7)
    assert np.all(gradient[0, [2, 4]] == 0)
    rest = [0, 1, 3, 5]
    counted, _ = loss_and_gradient(function, logits[:, rest], targets[:, rest], quality[:, rest])
    np.testing.assert_allclose(loss, counted, rtol=1e-6)
