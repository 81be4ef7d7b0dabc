"""Overlap of pairs of boxes: IoU, and GIoU, DIoU and CIoU, which extend it to disjoint boxes.

Each function takes two tensors of boxes [..., 4] with sides of at least 0 and returns [...], 1 for
equal boxes. Overlaps do not depend on the unit, so they are computed in units of the longer side of
the enclosing box: values and gradients stay finite for boxes without area and far apart.
"""

import math
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from tpudet.detection.ops.boxes import box_areas, paired_intersections
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

OverlapKind = Literal["iou", "giou", "diou", "ciou"]

_SMALL = 1e-8  # in pixels, in that unit or its square; avoids 0 / 0


class _Pair(NamedTuple):
    """Two tensors of boxes in units of the enclosing box, and its sides [..., 2]."""

    first: Tensor
    second: Tensor
    enclosing: Tensor


def _scaled_pair(first: Tensor, second: Tensor) -> _Pair:
    low = ops.minimum(first[..., :2], second[..., :2])
    enclosing = ops.maximum(first[..., 2:], second[..., 2:]) - low
    unit = ops.maximum(ops.max(enclosing, axis=-1, keepdims=True), _SMALL)
    unit = ops.stop_gradient(unit)
    return _Pair(first / unit, second / unit, enclosing / unit)


def _iou_and_union(pair: _Pair) -> tuple[Tensor, Tensor]:
    shared = paired_intersections(pair.first, pair.second)
    union = box_areas(pair.first) + box_areas(pair.second) - shared
    return shared / ops.maximum(union, _SMALL), union


def _center_distance(pair: _Pair) -> Tensor:
    # Squared distance of the centres over the squared diagonal of the enclosing box.
    between = 0.5 * (
        pair.first[..., :2] + pair.first[..., 2:] - pair.second[..., :2] - pair.second[..., 2:]
    )
    diagonal = ops.sum(ops.square(pair.enclosing), axis=-1)
    return ops.sum(ops.square(between), axis=-1) / ops.maximum(diagonal, _SMALL)


def _shape_angle(boxes: Tensor) -> Tensor:
    sides = boxes[..., 2:] - boxes[..., :2] + _SMALL
    return ops.arctan2(sides[..., 1], sides[..., 0])


def paired_iou(first: Tensor, second: Tensor) -> Tensor:
    """Returns intersection over union, 0..1; 0 for two boxes without area."""
    return _iou_and_union(_scaled_pair(first, second))[0]


def paired_giou(first: Tensor, second: Tensor) -> Tensor:
    """Returns IoU minus the empty share of the enclosing box, -1..1 (arXiv 1902.09630)."""
    pair = _scaled_pair(first, second)
    iou, union = _iou_and_union(pair)
    hull = pair.enclosing[..., 0] * pair.enclosing[..., 1]
    return iou - (hull - union) / ops.maximum(hull, _SMALL)


def paired_diou(first: Tensor, second: Tensor) -> Tensor:
    """Returns IoU minus the squared distance of the centres, -1..1 (arXiv 1911.08287).

    The distance is in diagonals of the enclosing box.
    """
    pair = _scaled_pair(first, second)
    return _iou_and_union(pair)[0] - _center_distance(pair)


def paired_ciou(first: Tensor, second: Tensor) -> Tensor:
    """Returns DIoU minus a term for unequal aspect ratios (arXiv 1911.08287, equations 8 to 11).

    No gradient flows through the term's trade-off factor.
    """
    pair = _scaled_pair(first, second)
    iou, _ = _iou_and_union(pair)
    angle = _shape_angle(pair.first) - _shape_angle(pair.second)
    difference = ops.square(angle) * (4.0 / math.pi**2)
    trade_off = ops.stop_gradient(difference / (1.0 - iou + difference + _SMALL))
    return iou - _center_distance(pair) - trade_off * difference


OVERLAPS: Mapping[OverlapKind, Callable[[Tensor, Tensor], Tensor]] = {
    "iou": paired_iou,
    "giou": paired_giou,
    "diou": paired_diou,
    "ciou": paired_ciou,
}
