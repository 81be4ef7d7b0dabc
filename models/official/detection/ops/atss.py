"""Adaptive training sample selection (Zhang et al., arXiv 1912.02424): no threshold to choose.

Each instance chooses its own: the mean and the deviation of the overlaps that it has nearby.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import keras

from tpudet.detection.ops.boxes import box_areas, intersection_matrix
from tpudet.detection.ops.matching import Matches, held_by_crowds, matches_of, usable_boxes
from tpudet.detection.ops.overlaps import paired_iou
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results


def match_atss(
    anchors: Tensor,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    *,
    locations_per_level: Sequence[int],
    candidates_per_level: int = 9,
    crowd_threshold: float = 0.5,
) -> Matches:
    """Matches each instance with those of the anchors nearby that overlap it remarkably.

    Nearby are, on each level, the locations nearest to its centre, each with all its anchors, as in
    the authors' code. Those whose IoU is at least the mean plus the standard deviation (over count
    - 1) of all that are nearby, and whose centre lies within the box, are the instance's. An anchor
    of several goes to the one that it overlaps most; of equals, the first. An instance between the
    centres of the anchors gets none.

    Padding, boxes without area and boxes with numbers that are not finite never match. An anchor
    that matches no instance is ignored where crowd boxes hold enough of it. Costs a few float32
    matrices of B x N x A: at 4 images, 100 instances and 49,104 anchors 79 MB each.

    Args:
        anchors: [A, 4] with areas over 0, level by level, those of one location together.
        boxes: [B, N, 4].
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        locations_per_level: As of `ops.anchors.locations_per_level`; divides A in all.
        candidates_per_level: Locations of each level that are nearby; all, where it has fewer.
        crowd_threshold: Share of an anchor within one crowd box from which it is ignored.
    """
    anchors = ops.convert_to_tensor(anchors, "float32")
    boxes, filled = usable_boxes(boxes, classes)
    nearby = _nearby_anchors(anchors, boxes, locations_per_level, candidates_per_level)
    candidates = ops.take(anchors, nearby, axis=0)  # [B, N, K, 4]
    iou = paired_iou(boxes[:, :, None], candidates)
    instances = filled & ops.logical_not(is_crowd)
    # Equal overlaps are their own threshold, and rounding must not decide. Of anchors of 32 pixels
    # somewhere on a canvas of 1024 they differ by up to 1e-6.
    chosen = (iou >= _own_threshold(iou) - 1e-5) & _center_within(candidates, boxes)
    chosen = chosen & instances[..., None]
    instance, positive = _best_instances(nearby, iou, chosen, num_anchors=ops.shape(anchors)[0])
    in_crowd = held_by_crowds(
        intersection_matrix(boxes, anchors), box_areas(anchors), filled & is_crowd, crowd_threshold
    )
    return matches_of(anchors, boxes, classes, instance, positive=positive, ignored=in_crowd)


def _nearby_anchors(
    anchors: Tensor, boxes: Tensor, locations_per_level: Sequence[int], count: int
) -> Tensor:
    # [A, 4] and [B, N, 4] -> [B, N, K] int32, numbers of the anchors.
    per_location = ops.shape(anchors)[0] // sum(locations_per_level)
    places = anchors[::per_location, :2] + anchors[::per_location, 2:]  # twice the centres
    centers = (boxes[..., :2] + boxes[..., 2:])[:, :, None]
    ends = itertools.accumulate(locations_per_level)
    nearby = []
    for size, end in zip(locations_per_level, ends, strict=True):
        distances = ops.sum(ops.square(centers - places[end - size : end]), axis=-1)
        nearest = ops.top_k(-distances, min(count, size))[1]
        nearby.append(ops.cast(nearest, "int32") + (end - size))
    locations = ops.concatenate(nearby, axis=-1)[..., None]
    numbers = locations * per_location + ops.arange(per_location, dtype="int32")
    total = per_location * sum(min(count, size) for size in locations_per_level)
    return ops.reshape(numbers, (-1, boxes.shape[1], total))


def _own_threshold(iou: Tensor) -> Tensor:
    # [B, N, K] -> [B, N, 1]
    mean = ops.mean(iou, axis=-1, keepdims=True)
    squares = ops.sum(ops.square(iou - mean), axis=-1, keepdims=True)
    return mean + ops.sqrt(squares / max(iou.shape[-1] - 1, 1))


def _center_within(candidates: Tensor, boxes: Tensor) -> Tensor:
    # [B, N, K, 4] and [B, N, 4] -> [B, N, K] bool
    centers = 0.5 * (candidates[..., :2] + candidates[..., 2:])
    within = (centers > boxes[:, :, None, :2]) & (centers < boxes[:, :, None, 2:])
    return ops.all(within, axis=-1)


def _best_instances(
    nearby: Tensor, iou: Tensor, chosen: Tensor, *, num_anchors: int
) -> tuple[Tensor, Tensor]:
    """Returns [B, A] int32, the instance of each anchor, and [B, A] bool, whether it has one."""
    batch, count, _ = ops.shape(nearby)
    # Rows of the flattened batch; what is not chosen goes to one row past the end.
    rows = nearby + ops.cast(ops.arange(batch) * num_anchors, "int32")[:, None, None]
    rows = ops.where(chosen, rows, batch * num_anchors)

    def largest(values: Tensor) -> Tensor:
        return ops.segment_max(
            ops.reshape(values, (-1,)), ops.reshape(rows, (-1,)), batch * num_anchors + 1
        )

    # Compilers may round an overlap one way here and another way there.
    is_best = iou >= ops.take(largest(iou), rows) - 1e-6
    order = ops.cast(count - ops.arange(count), "int32")[None, :, None]  # the first has the largest
    best = largest(ops.where(is_best, order, 0))[:-1]
    best = ops.reshape(ops.maximum(best, 0), (batch, num_anchors))  # without any it is the least
    positive = best > 0
    return ops.where(positive, count - best, 0), positive
