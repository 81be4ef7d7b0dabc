"""How far pairs of boxes overlap: intersection over union, and what extends it to apart boxes.

Each takes boxes [..., 4] and their partners [..., 4] with sides of 0 or more and returns [...], 1
for equal boxes. They do not depend on the unit, so they are computed in the longer side of the box
around both: nothing overflows, and numbers and gradients are finite, without area and far apart.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import keras

from tpudet.detection.ops.boxes import box_areas, paired_intersections
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results

OverlapKind = Literal["iou", "giou", "diou", "ciou"]

_SMALL = 1e-8  # in pixels, or in that unit and its square; keeps 0 / 0 away


class _Pair(NamedTuple):
    """Boxes and partners in the longer side of the box around both, and its sides [..., 2]."""

    first: Tensor
    second: Tensor
    around: Tensor


def _scaled_pair(first: Tensor, second: Tensor) -> _Pair:
    low = ops.minimum(first[..., :2], second[..., :2])
    around = ops.maximum(first[..., 2:], second[..., 2:]) - low
    unit = ops.maximum(ops.max(around, axis=-1, keepdims=True), _SMALL)
    unit = ops.stop_gradient(unit)
    return _Pair(first / unit, second / unit, around / unit)


def _iou_and_union(pair: _Pair) -> tuple[Tensor, Tensor]:
    shared = paired_intersections(pair.first, pair.second)
    union = box_areas(pair.first) + box_areas(pair.second) - shared
    return shared / ops.maximum(union, _SMALL), union


def _center_distance(pair: _Pair) -> Tensor:
    # The squared distance of the centres over the squared diagonal of the box around both.
    between = 0.5 * (
        pair.first[..., :2] + pair.first[..., 2:] - pair.second[..., :2] - pair.second[..., 2:]
    )
    diagonal = ops.sum(ops.square(pair.around), axis=-1)
    return ops.sum(ops.square(between), axis=-1) / ops.maximum(diagonal, _SMALL)


def _shape_angle(boxes: Tensor) -> Tensor:
    sides = boxes[..., 2:] - boxes[..., :2] + _SMALL
    return ops.arctan2(sides[..., 1], sides[..., 0])


def paired_iou(first: Tensor, second: Tensor) -> Tensor:
    """Returns intersection over union, 0..1; 0 for two boxes without area."""
    return _iou_and_union(_scaled_pair(first, second))[0]


def paired_giou(first: Tensor, second: Tensor) -> Tensor:
    """Returns IoU less the empty share of the box around both, -1..1 (arXiv 1902.09630)."""
    pair = _scaled_pair(first, second)
    iou, union = _iou_and_union(pair)
    hull = pair.around[..., 0] * pair.around[..., 1]
    return iou - (hull - union) / ops.maximum(hull, _SMALL)


def paired_diou(first: Tensor, second: Tensor) -> Tensor:
    """Returns IoU less the squared distance of the centres, -1..1 (arXiv 1911.08287).

    The distance is counted in diagonals of the box around both.
    """
    pair = _scaled_pair(first, second)
    return _iou_and_union(pair)[0] - _center_distance(pair)


def paired_ciou(first: Tensor, second: Tensor) -> Tensor:
    """Returns DIoU less a term of unlike aspect ratios (arXiv 1911.08287, equations 8 to 11).

    The term's trade-off factor gets no gradient.
    """
    pair = _scaled_pair(first, second)
    iou, _ = _iou_and_union(pair)
    angle = _shape_angle(pair.first) - _shape_angle(pair.second)
    unlike = ops.square(angle) * (4.0 / math.pi**2)
    trade_off = ops.stop_gradient(unlike / (1.0 - iou + unlike + _SMALL))
    return iou - _center_distance(pair) - trade_off * unlike


OVERLAPS: Mapping[OverlapKind, Callable[[Tensor, Tensor], Tensor]] = {
    "iou": paired_iou,
    "giou": paired_giou,
    "diou": paired_diou,
    "ciou": paired_ciou,
}
