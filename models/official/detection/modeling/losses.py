"""Losses of one-stage detectors, sums over anchors divided by a normaliser that is handed in."""

from typing import Any

import keras

from detection.ops.matching import IGNORED
from detection.types import Tensor

ops: Any = keras.ops  # annotated with None among its results


def focal_loss(
    class_logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    *,
    alpha: float = 0.25,
    gamma: float = 1.5,
) -> Tensor:
    """Returns the focal loss (Lin et al., arXiv 1708.02002, equation 5) over the normaliser.

    Written on `log(1 - p) = -softplus(x)`, so it and its gradient are finite for any finite logit.
    The gradient is written out: nothing but the logits is kept for it, and targets are compared
    with class numbers instead of being spread to floats, one byte a logit: 16 MB at 4 images,
    49,104 anchors and 80 classes, 153 MB at 76,725 anchors and 500 classes (logits: 614 MB).

    Args:
        class_logits: [B, A, C] float32; channel k is class k + 1.
        targets: [B, A] int32: 1..C, 0 nothing there, -1 ignored.
        normalizer: Scalar, the positive anchors of all replicas plus 1; gets no gradient.
        alpha: Weight of the right class, 1 - alpha that of all others.
        gamma: Exponent of the modulating factor, 0 or more.
    """
    targets = ops.stop_gradient(ops.cast(targets, "int32"))
    counted = ops.cast(targets != IGNORED, "float32")  # [B, A]
    positive = ops.cast(targets > 0, "float32")

    def loss(logits: Tensor):
        channel = ops.maximum(targets - 1, 0)
        at_target = _logits_at(logits, channel)  # [B, A]
        others = (1.0 - alpha) * ops.sum(ops.sum(_modulated(logits, gamma), axis=-1) * counted) - (
            1.0 - alpha
        ) * ops.sum(_modulated(at_target, gamma) * positive)
        total = others + alpha * ops.sum(_modulated(-at_target, gamma) * positive)

        def gradient(*args: Tensor, upstream: Tensor = None) -> Tensor:
            upstream = args[0] if upstream is None else upstream
            wrong = (1.0 - alpha) * upstream * counted
            right = -alpha * upstream * _modulated_slope(-at_target, gamma)
            is_target = targets[..., None] == ops.arange(1, logits.shape[-1] + 1, dtype="int32")
            return ops.where(
                is_target, right[..., None], _modulated_slope(logits, gamma) * wrong[..., None]
            )

        return total, gradient

    return ops.custom_gradient(loss)(class_logits) / ops.stop_gradient(normalizer)


def _logits_at(logits: Tensor, channel: Tensor) -> Tensor:
    depth = logits.shape[-1]
    rows = ops.reshape(channel, (-1,)) + ops.arange(ops.size(channel), dtype="int32") * depth
    return ops.reshape(ops.take(ops.reshape(logits, (-1,)), rows), ops.shape(channel))


def _modulated(logits: Tensor, gamma: float) -> Tensor:
    # -p**gamma * log(1 - p), the cost of a class that is not there; of one that is, at -logits.
    cost = ops.softplus(logits)
    return ops.exp(gamma * (logits - cost)) * cost


def _modulated_slope(logits: Tensor, gamma: float) -> Tensor:
    # Its derivative, p**gamma * (p - gamma * (1 - p) * log(1 - p)).
    cost = ops.softplus(logits)
    log_probability = logits - cost
    probability = ops.exp(log_probability)
    return ops.exp(gamma * log_probability) * (probability + gamma * (1.0 - probability) * cost)


def huber_box_loss(
    box_deltas: Tensor,
    targets: Tensor,
    positive: Tensor,
    normalizer: Tensor,
    *,
    delta: float = 0.1,
) -> Tensor:
    """Returns the Huber loss of positive anchors over 4 times the normaliser.

    `d**2 / 2` where the difference d is within `delta`, else `delta * (|d| - delta / 2)`.

    Args:
        box_deltas: [B, A, 4] float32.
        targets: [B, A, 4] encoded boxes, finite also where not positive.
        positive: [B, A] bool.
        normalizer: Scalar, the positive anchors of all replicas plus 1; gets no gradient.
        delta: Where the parabola ends, over 0.
    """
    differences = ops.abs(box_deltas - ops.stop_gradient(targets))
    within = ops.minimum(differences, delta)
    costs = within * (differences - 0.5 * within)
    total = ops.sum(ops.where(positive[..., None], costs, 0.0))
    return total / (4.0 * ops.stop_gradient(normalizer))
