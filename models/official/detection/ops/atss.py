"""Adaptive training sample selection (Zhang et al., arXiv 1912.02424).

Each instance has its own IoU threshold, from the statistics of the anchors near its centre; there
is none to tune.
"""

import itertools
from collections.abc import Sequence

from tpudet.detection.ops.boxes import box_areas, intersection_matrix
from tpudet.detection.ops.matching import Matches, gather_matches, inside_crowds, mask_invalid_boxes
from tpudet.detection.ops.overlaps import paired_iou
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def match_atss(
    anchors: Tensor,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    *,
    locations_per_level: Sequence[int],
    candidates_per_level: int,
) -> Matches:
    """Assigns each instance the nearby anchors whose IoU exceeds the mean plus one deviation.

    The candidates of an instance are, on each level, the locations nearest to its centre, each with
    all its anchors, as in the authors' code. The threshold is the mean plus the sample standard
    deviation of the IoU of all candidates; the anchor's centre must also be inside the box. An
    anchor claimed by several instances goes to the one with the highest IoU, the first of equal
    ones. An instance that contains no anchor's centre gets none.

    Padding, boxes without area and boxes with non-finite coordinates never match. An unmatched
    anchor is ignored if a crowd box contains enough of it. The cost is a few float32 tensors
    [B, N, A]: 79 MB each for 4 images, 100 instances and 49,104 anchors.

    Args:
        anchors: [A, 4] of positive area, ordered by level, then location.
        boxes: [B, N, 4].
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        locations_per_level: See `ops.anchors.locations_per_level`; their sum divides A.
        candidates_per_level: locations per level that are candidates; all, if it has fewer.
    """
    anchors = ops.convert_to_tensor(anchors, "float32")
    boxes, filled = mask_invalid_boxes(boxes, classes)
    nearby = _nearby_anchors(anchors, boxes, locations_per_level, candidates_per_level)
    candidates = ops.take(anchors, nearby, axis=0)  # [B, N, K, 4]
    iou = paired_iou(boxes[:, :, None], candidates)
    instances = filled & ops.logical_not(is_crowd)
    # If all overlaps are equal, they equal the threshold, and rounding must not decide. Overlaps of
    # anchors of 32 pixels on a canvas of 1024 differ by up to 1e-6.
    chosen = (iou >= _own_threshold(iou) - 1e-5) & _center_within(candidates, boxes)
    chosen = chosen & instances[..., None]
    instance, positive = _best_instances(nearby, iou, chosen, num_anchors=ops.shape(anchors)[0])
    in_crowd = inside_crowds(
        intersection_matrix(boxes, anchors), box_areas(anchors), filled & is_crowd
    )
    return gather_matches(anchors, boxes, classes, instance, positive=positive, ignored=in_crowd)


def centerness(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Returns how far inside its box the centre of each anchor lies: [B, A], 1 at the box's own.

    Along each axis the distance to the nearer side over that to the farther one; of the two, the
    geometric mean (Tian et al., arXiv 1904.01355, equation 3). 0 where the centre is outside.

    Args:
        anchors: [A, 4].
        boxes: [B, A, 4], the box of each anchor's object.
    """
    centers = 0.5 * (anchors[:, :2] + anchors[:, 2:])
    before, after = centers - boxes[..., :2], boxes[..., 2:] - centers
    nearer = ops.maximum(ops.minimum(before, after), 0.0)
    ratios = nearer / ops.maximum(ops.maximum(before, after), 1e-7)
    return ops.sqrt(ratios[..., 0] * ratios[..., 1])


def _nearby_anchors(
    anchors: Tensor, boxes: Tensor, locations_per_level: Sequence[int], count: int
) -> Tensor:
    # [A, 4] and [B, N, 4] -> [B, N, K] int32, indices of anchors.
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
    """Returns each anchor's instance, [B, A] int32, and whether it has one, [B, A] bool."""
    batch, count, _ = ops.shape(nearby)
    # Rows of the flattened batch; candidates that are not chosen go to one row past the end.
    rows = nearby + ops.cast(ops.arange(batch) * num_anchors, "int32")[:, None, None]
    rows = ops.where(chosen, rows, batch * num_anchors)

    def largest(values: Tensor) -> Tensor:
        return ops.segment_max(
            ops.reshape(values, (-1,)), ops.reshape(rows, (-1,)), batch * num_anchors + 1
        )

    # Compilers may round the same overlap differently in two places.
    is_best = iou >= ops.take(largest(iou), rows) - 1e-6
    order = ops.cast(count - ops.arange(count), "int32")[None, :, None]  # largest for the first
    best = largest(ops.where(is_best, order, 0))[:-1]
    # Anchors without a candidate have the lowest integer.
    best = ops.reshape(ops.maximum(best, 0), (batch, num_anchors))
    positive = best > 0
    return ops.where(positive, count - best, 0), positive
