"""Class losses of one-stage detectors: sums over anchors and classes over a normaliser.

All three are called alike, with

- class_logits: [B, A, C] float32; channel k is class k + 1;
- targets: [B, A] int32: 1..C, 0 nothing there, -1 ignored;
- quality: [B, A] float32, 0..1, how well each anchor's predicted box lies on its object, read where
  the target is over 0; gets no gradient;
- normalizer: scalar, the positive anchors of all replicas plus 1; gets no gradient.

They are written on `log(1 - p) = -softplus(x)`, so they and their gradients are finite for any
finite logit. The gradient is written out: nothing but the logits is kept for it, and targets are
compared with class numbers instead of being spread to floats, one byte a logit: 16 MB at 4 images,
49,104 anchors and 80 classes, 153 MB at 76,725 anchors and 500 classes (logits: 614 MB).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from tpudet.detection.ops.boxes import decode_boxes, encode_boxes
from tpudet.detection.ops.matching import IGNORED
from tpudet.detection.ops.overlaps import OVERLAPS, OverlapKind
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results


def huber_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    positive: Tensor,
    normalizer: Tensor,
    *,
    delta: float = 0.1,
) -> Tensor:
    """Returns the Huber loss of the encoded boxes, the mean of their four numbers.

    `d**2 / 2` where the difference d is within `delta`, else `delta * (|d| - delta / 2)`.

    Args:
        box_deltas: As the module says.
        boxes: As the module says.
        anchors: As the module says.
        positive: As the module says.
        normalizer: As the module says.
        delta: Where the parabola ends, over 0.
    """
    targets = encode_boxes(boxes, ops.convert_to_tensor(anchors))
    differences = ops.abs(box_deltas - ops.stop_gradient(targets))
    within = ops.minimum(differences, delta)
    costs = ops.mean(within * (differences - 0.5 * within), axis=-1)
    return _sum_of_positives(costs, positive) / ops.stop_gradient(normalizer)


def smooth_l1_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    positive: Tensor,
    normalizer: Tensor,
    *,
    beta: float = 0.1,
) -> Tensor:
    """Returns the smooth L1 loss of the encoded boxes: `huber_box_loss` over its `delta`.

    So its slope far from the target is 1 whatever beta is (Girshick, arXiv 1504.08083, equation 3,
    with beta for 1). A mean of four numbers, where some systems take the sum.

    Args:
        box_deltas: As the module says.
        boxes: As the module says.
        anchors: As the module says.
        positive: As the module says.
        normalizer: As the module says.
        beta: Where the parabola ends, over 0.
    """
    return huber_box_loss(box_deltas, boxes, anchors, positive, normalizer, delta=beta) / beta


def overlap_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    positive: Tensor,
    normalizer: Tensor,
    *,
    kind: OverlapKind = "giou",
) -> Tensor:
    """Returns 1 minus the overlap of the decoded box with its object's.

    Args:
        box_deltas: As the module says.
        boxes: As the module says.
        anchors: As the module says.
        positive: As the module says.
        normalizer: As the module says.
        kind: Which overlap: "iou", "giou", "diou" or "ciou" of `ops.overlaps`.
    """
    predicted = decode_boxes(box_deltas, ops.convert_to_tensor(anchors))
    costs = 1.0 - OVERLAPS[kind](predicted, ops.stop_gradient(boxes))
    return _sum_of_positives(costs, positive) / ops.stop_gradient(normalizer)


def _sum_of_positives(costs: Tensor, positive: Tensor) -> Tensor:
    return ops.sum(ops.where(positive, costs, 0.0))


ops: Any = keras.ops  # annotated with None among its results


def focal_loss(
    class_logits: Tensor,
    targets: Tensor,
    quality: Tensor,
    normalizer: Tensor,
    *,
    alpha: float = 0.25,
    gamma: float = 1.5,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns the focal loss (Lin et al., arXiv 1708.02002, equation 5).

    Args:
        class_logits: As the module says.
        targets: As the module says.
        quality: Not looked at: the target is 1 wherever the box lies.
        normalizer: As the module says.
        alpha: Weight of the right class, 1 - alpha that of all others.
        gamma: Exponent of the modulating factor, 0 or more.
        label_smoothing: The cross-entropy's targets are half of this and 1 minus half of it instead
            of 0 and 1, 0..1; the modulating factor keeps to 0 and 1.
    """
    smoothing = 0.5 * label_smoothing
    absent = _modulated_curve(gamma, smoothing)

    def at_target(logits: Tensor, quality: Tensor) -> Tensor:
        return alpha * absent.cost(-logits)

    def target_slope(logits: Tensor, quality: Tensor) -> Tensor:
        return -alpha * absent.slope(-logits)

    return _class_loss(
        class_logits,
        targets,
        quality,
        normalizer,
        absent=absent,
        absent_weight=1.0 - alpha,
        target=_TargetCurve(at_target, target_slope),
    )


def quality_focal_loss(
    class_logits: Tensor,
    targets: Tensor,
    quality: Tensor,
    normalizer: Tensor,
    *,
    beta: float = 2.0,
) -> Tensor:
    """Returns the quality focal loss (Li et al., arXiv 2006.04388, equation 2).

    `|q - p|**beta` times the cross-entropy of score p against the target q: the quality for the
    right class, 0 for all others.

    Args:
        class_logits: As the module says.
        targets: As the module says.
        quality: As the module says.
        normalizer: As the module says.
        beta: Exponent of the modulating factor, 1 or more.
    """

    def at_target(logits: Tensor, quality: Tensor) -> Tensor:
        distance = ops.abs(quality - ops.sigmoid(logits))
        return distance**beta * (ops.softplus(logits) - quality * logits)

    def target_slope(logits: Tensor, quality: Tensor) -> Tensor:
        probability = ops.sigmoid(logits)
        excess = probability - quality  # also the slope of the cross-entropy
        distance = ops.abs(excess)
        cross_entropy = ops.softplus(logits) - quality * logits
        steepening = beta * distance ** (beta - 1.0) * ops.sign(excess)
        return (
            steepening * probability * (1.0 - probability) * cross_entropy + distance**beta * excess
        )

    return _class_loss(
        class_logits,
        targets,
        quality,
        normalizer,
        absent=_modulated_curve(beta, 0.0),
        absent_weight=1.0,
        target=_TargetCurve(at_target, target_slope),
    )


def varifocal_loss(
    class_logits: Tensor,
    targets: Tensor,
    quality: Tensor,
    normalizer: Tensor,
    *,
    alpha: float = 0.75,
    gamma: float = 2.0,
) -> Tensor:
    """Returns the varifocal loss (Zhang et al., arXiv 2008.13367, equation 2).

    Right classes cost their quality times the cross-entropy against it; all others, and those whose
    predicted box misses its object altogether, `alpha * p**gamma * -log(1 - p)`.

    Args:
        class_logits: As the module says.
        targets: As the module says.
        quality: As the module says.
        normalizer: As the module says.
        alpha: Weight of the classes that are not there.
        gamma: Exponent of their modulating factor, 0 or more.
    """
    absent = _modulated_curve(gamma, 0.0)

    def at_target(logits: Tensor, quality: Tensor) -> Tensor:
        cost = quality * (ops.softplus(logits) - quality * logits)
        return ops.where(quality > 0, cost, alpha * absent.cost(logits))

    def target_slope(logits: Tensor, quality: Tensor) -> Tensor:
        slope = quality * (ops.sigmoid(logits) - quality)
        return ops.where(quality > 0, slope, alpha * absent.slope(logits))

    return _class_loss(
        class_logits,
        targets,
        quality,
        normalizer,
        absent=absent,
        absent_weight=alpha,
        target=_TargetCurve(at_target, target_slope),
    )


class _Curve(NamedTuple):
    """A cost of logits [...] and its derivative [...]."""

    cost: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


class _TargetCurve(NamedTuple):
    """A cost of logits and qualities [B, A] of the right class and its derivative by the logits."""

    cost: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _modulated_curve(gamma: float, smoothing: float) -> _Curve:
    # p**gamma * cross-entropy against a target of `smoothing`, as that of a class that is not
    # there. Of a class that is, it is the same of the logit's negative.
    def cross_entropy(logits: Tensor, softplus: Tensor) -> Tensor:
        return softplus - smoothing * logits if smoothing else softplus

    def cost(logits: Tensor) -> Tensor:
        softplus = ops.softplus(logits)
        return ops.exp(gamma * (logits - softplus)) * cross_entropy(logits, softplus)

    def slope(logits: Tensor) -> Tensor:
        softplus = ops.softplus(logits)
        log_probability = logits - softplus
        probability = ops.exp(log_probability)
        steepening = gamma * (1.0 - probability) * cross_entropy(logits, softplus)
        return ops.exp(gamma * log_probability) * (probability - smoothing + steepening)

    return _Curve(cost, slope)


def _class_loss(
    class_logits: Tensor,
    targets: Tensor,
    quality: Tensor,
    normalizer: Tensor,
    *,
    absent: _Curve,
    absent_weight: float,
    target: _TargetCurve,
) -> Tensor:
    # The cost of every class as if it were not there, with that of the right ones put in its place.
    targets = ops.stop_gradient(ops.cast(targets, "int32"))
    counted = ops.cast(targets != IGNORED, "float32")  # [B, A]
    positive = ops.cast(targets > 0, "float32")

    def loss(logits: Tensor, quality: Tensor):
        logits_at_target = _logits_at(logits, ops.maximum(targets - 1, 0))  # [B, A]
        others = ops.sum(ops.sum(absent.cost(logits), axis=-1) * counted) - ops.sum(
            absent.cost(logits_at_target) * positive
        )
        right = ops.sum(target.cost(logits_at_target, quality) * positive)

        def gradient(*args: Tensor, upstream: Tensor = None) -> tuple[Tensor, Tensor]:
            upstream = args[0] if upstream is None else upstream
            wrong = absent_weight * upstream * counted
            right = upstream * target.slope(logits_at_target, quality)
            is_target = targets[..., None] == ops.arange(1, logits.shape[-1] + 1, dtype="int32")
            slopes = absent.slope(logits) * wrong[..., None]
            return ops.where(is_target, right[..., None], slopes), ops.zeros_like(quality)

        return absent_weight * others + right, gradient

    total = ops.custom_gradient(loss)(class_logits, ops.stop_gradient(quality))
    return total / ops.stop_gradient(normalizer)


def _logits_at(logits: Tensor, channel: Tensor) -> Tensor:
    # Not by row numbers of all logits together: from 2**31 on they would overflow int32.
    return ops.take_along_axis(logits, channel[..., None], axis=-1)[..., 0]
