"""Class and box losses of one-stage detectors: sums over anchors, divided by normalisers.

The class losses take

- class_logits: [B, A, C] float32; channel k is class k + 1;
- targets: [B, A] int32: 1..C, 0 for background, -1 for ignored;
- quality: [B, A] float32, 0..1, how well each anchor's predicted box fits its object; read only
  where the target is above 0; gets no gradient;
- normalizer: [] or [B], what the sum over the anchors of each image is divided by, such as the
  positive anchors of all replicas plus 1; gets no gradient.

The box losses take

- box_deltas: [B, A, 4] float32, encoded against the anchors;
- boxes: [B, A, 4] float32, the box of each anchor's object; gets no gradient;
- anchors: [A, 4] float32;
- weights: [B, A], what each anchor counts; 0 or False: its box is not looked at;
- normalizer: as above.

Class losses are written in terms of `log(1 - p) = -softplus(x)`, so they and their gradients are
finite for any finite logit. Their gradient is explicit: only the logits are kept for it, and
targets are compared with class numbers instead of being expanded to floats, at one byte per logit:
16 MB for 4 images, 49,104 anchors and 80 classes; 153 MB for 76,725 anchors and 500 classes (whose
logits take 614 MB).
"""

from collections.abc import Callable
from typing import NamedTuple

from tpudet.detection.ops.boxes import decode_boxes, encode_boxes
from tpudet.detection.ops.matching import IGNORED
from tpudet.detection.ops.overlaps import OVERLAPS, OverlapKind
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def focal_loss(
    class_logits: Tensor,
    targets: Tensor,
    quality: Tensor,
    normalizer: Tensor,
    *,
    alpha: float,
    gamma: float,
    label_smoothing: float,
) -> Tensor:
    """Returns the focal loss (Lin et al., arXiv 1708.02002, equation 5); ignores `quality`.

    Args:
        alpha: weight of the target class; all others have 1 - alpha.
        gamma: exponent of the modulating factor, 0 or more.
        label_smoothing: the targets of the cross-entropy are half of this and 1 minus half of it,
            instead of 0 and 1; in 0..1. The modulating factor keeps the targets 0 and 1.
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
    beta: float,
) -> Tensor:
    """Returns the quality focal loss (Li et al., arXiv 2006.04388, equation 2).

    `|q - p|**beta` times the cross-entropy of score p against the target q, which is the quality
    for the target class and 0 for all others.

    Args:
        beta: exponent of the modulating factor, 1 or more.
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
    alpha: float,
    gamma: float,
) -> Tensor:
    """Returns the varifocal loss (Zhang et al., arXiv 2008.13367, equation 2).

    Target classes cost their quality times the cross-entropy against it. All others, and those
    whose predicted box misses its object altogether, cost `alpha * p**gamma * -log(1 - p)`.

    Args:
        alpha: weight of the other classes.
        gamma: exponent of their modulating factor, 0 or more.
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


def huber_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    weights: Tensor,
    normalizer: Tensor,
    *,
    delta: float,
) -> Tensor:
    """Returns the Huber loss of the encoded boxes, averaged over their four numbers.

    `d**2 / 2` where the difference d is within `delta`, else `delta * (|d| - delta / 2)`.

    Args:
        delta: end of the parabola, above 0.
    """
    targets = encode_boxes(boxes, ops.convert_to_tensor(anchors))
    differences = ops.abs(box_deltas - ops.stop_gradient(targets))
    within = ops.minimum(differences, delta)
    costs = ops.mean(within * (differences - 0.5 * within), axis=-1)
    return _weighted_sum(costs, weights, normalizer)


def smooth_l1_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    weights: Tensor,
    normalizer: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Returns the smooth L1 loss of the encoded boxes: `huber_box_loss` divided by its `delta`.

    So its slope far from the target is 1 for any beta (Girshick, arXiv 1504.08083, equation 3,
    where beta is 1). Deviation: the mean of the four numbers, where others take the sum.

    Args:
        beta: end of the parabola, above 0.
    """
    return huber_box_loss(box_deltas, boxes, anchors, weights, normalizer, delta=beta) / beta


def l1_box_loss(
    box_deltas: Tensor, boxes: Tensor, anchors: Tensor, weights: Tensor, normalizer: Tensor
) -> Tensor:
    """Returns the absolute difference of the encoded boxes, averaged over their four numbers."""
    targets = encode_boxes(boxes, ops.convert_to_tensor(anchors))
    costs = ops.mean(ops.abs(box_deltas - ops.stop_gradient(targets)), axis=-1)
    return _weighted_sum(costs, weights, normalizer)


def overlap_box_loss(
    box_deltas: Tensor,
    boxes: Tensor,
    anchors: Tensor,
    weights: Tensor,
    normalizer: Tensor,
    *,
    kind: OverlapKind,
) -> Tensor:
    """Returns 1 minus the overlap of the decoded box with the box of its object.

    Args:
        kind: "iou", "giou", "diou" or "ciou"; see `ops.overlaps`.
    """
    predicted = decode_boxes(box_deltas, ops.convert_to_tensor(anchors))
    costs = 1.0 - OVERLAPS[kind](predicted, ops.stop_gradient(boxes))
    return _weighted_sum(costs, weights, normalizer)


def centerness_loss(
    centerness_logits: Tensor, targets: Tensor, positive: Tensor, normalizer: Tensor
) -> Tensor:
    """Returns the cross-entropy of positive anchors (Tian et al., arXiv 1904.01355, section 3.2).

    Args:
        centerness_logits: [B, A] float32.
        targets: [B, A] float32, `ops.atss.centerness`; gets no gradient.
        positive: [B, A], the anchors that count.
        normalizer: as of the other losses.
    """
    costs = ops.softplus(centerness_logits) - ops.stop_gradient(targets) * centerness_logits
    return _weighted_sum(costs, positive, normalizer)


class _Curve(NamedTuple):
    """A cost of logits [...] and its derivative [...]."""

    cost: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


class _TargetCurve(NamedTuple):
    """A cost of logits and qualities [B, A] of the target class and its derivative by logits."""

    cost: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _modulated_curve(gamma: float, smoothing: float) -> _Curve:
    # p**gamma * cross-entropy against a target of `smoothing`: the cost of an absent class. That of
    # a present class is the same function of the negated logit.
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
    # The cost of every class as if it were absent, with that of the target classes replaced.
    targets = ops.stop_gradient(ops.cast(targets, "int32"))
    shares = ops.reshape(1.0 / ops.stop_gradient(normalizer), (-1, 1))  # [B, 1] or [1, 1]
    counted = ops.cast(targets != IGNORED, "float32") * shares  # [B, A]
    positive = ops.cast(targets > 0, "float32") * shares

    def loss(logits: Tensor, quality: Tensor):
        logits_at_target = _logits_at(logits, ops.maximum(targets - 1, 0))  # [B, A]
        others = ops.sum(ops.sum(absent.cost(logits), axis=-1) * counted) - ops.sum(
            absent.cost(logits_at_target) * positive
        )
        right = ops.sum(target.cost(logits_at_target, quality) * positive)

        def gradient(*args: Tensor, upstream: Tensor = None) -> tuple[Tensor, Tensor]:
            upstream = args[0] if upstream is None else upstream
            wrong = absent_weight * upstream * counted
            right = upstream * shares * target.slope(logits_at_target, quality)
            is_target = targets[..., None] == ops.arange(1, logits.shape[-1] + 1, dtype="int32")
            slopes = absent.slope(logits) * wrong[..., None]
            return ops.where(is_target, right[..., None], slopes), ops.zeros_like(quality)

        return absent_weight * others + right, gradient

    return ops.custom_gradient(loss)(class_logits, ops.stop_gradient(quality))


def _logits_at(logits: Tensor, channel: Tensor) -> Tensor:
    # Not by row numbers over all logits: beyond 2**31 they would overflow int32.
    return ops.take_along_axis(logits, channel[..., None], axis=-1)[..., 0]


def _weighted_sum(costs: Tensor, weights: Tensor, normalizer: Tensor) -> Tensor:
    weights = ops.stop_gradient(ops.cast(weights, "float32"))
    per_image = ops.sum(ops.where(weights > 0, weights * costs, 0.0), axis=1)
    return ops.sum(per_image / ops.stop_gradient(normalizer))
