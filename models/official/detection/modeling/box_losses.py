"""Box losses of one-stage detectors: sums over positive anchors over a normaliser.

All are called alike, with

- box_deltas: [B, A, 4] float32, what the network says;
- boxes: [B, A, 4] float32, the box of each anchor's object; anything with sides over 0 elsewhere;
- anchors: [A, 4] float32, with sides over 0;
- positive: [B, A] bool, whether the anchor has an object;
- normalizer: scalar, the positive anchors of all replicas plus 1; gets no gradient.

They and their gradients are finite for any deltas up to 1e30.
"""

from typing import Any

import keras

from detection.ops.boxes import decode_boxes, encode_boxes
from detection.ops.overlaps import OVERLAPS, OverlapKind
from detection.types import Tensor

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
