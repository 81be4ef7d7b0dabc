"""Which anchor answers for which instance."""

from typing import Any, NamedTuple

import keras

from tpudet.detection.ops.boxes import box_areas, intersection_matrix
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results

IGNORED = -1  # class of an anchor that takes no part in the loss
_MIN_AREA = 1e-8


class Matches(NamedTuple):
    """What each anchor should say."""

    classes: Tensor  # [B, A] int32: 1..C of the instance, 0 nothing there, -1 ignored
    boxes: Tensor  # [B, A, 4] box of the instance; the anchor itself where there is none


def match_argmax_iou(
    anchors: Tensor,
    boxes: Tensor,
    classes: Tensor,
    is_crowd: Tensor,
    *,
    match_threshold: float = 0.5,
    unmatched_threshold: float = 0.5,
    force_match: bool = True,
    crowd_threshold: float = 0.5,
) -> Matches:
    """Matches each anchor with the instance that it overlaps most; of equals, the first.

    Padding, boxes without area and boxes with numbers that are not finite never match. An anchor
    that matches no instance is ignored where crowd boxes hold enough of it. Costs a few float32
    matrices of B x N x A: at 4 images, 100 instances and 49,104 anchors 79 MB each.

    Args:
        anchors: [A, 4] with areas over 0.
        boxes: [B, N, 4].
        classes: [B, N] integer, 0 for padding.
        is_crowd: [B, N] bool.
        match_threshold: IoU from which an anchor is its instance's.
        unmatched_threshold: IoU below which it is background; between the two it is ignored.
        force_match: Whether each instance gets its best anchor whatever their IoU, as long as
            they touch; an anchor that is best for several goes to the first of them.
        crowd_threshold: Share of an anchor within one crowd box from which it is ignored.
    """
    anchors = ops.convert_to_tensor(anchors, "float32")
    boxes, filled = usable_boxes(boxes, classes)
    instances = filled & ops.logical_not(is_crowd)

    shared = intersection_matrix(boxes, anchors)  # [B, N, A]
    areas = box_areas(anchors)
    union = ops.maximum(box_areas(boxes)[..., None] + areas - shared, _MIN_AREA)
    # Below every threshold, and below the 0 of an instance that touches nothing.
    iou = ops.where(instances[..., None], shared / union, -1.0)

    best_iou = ops.max(iou, axis=1)  # [B, A]
    instance = ops.argmax(iou, axis=1)
    positive = best_iou >= match_threshold
    ignored = best_iou >= unmatched_threshold
    if force_match:
        forced = _forced_instances(iou)
        positive = positive | (forced >= 0)
        instance = ops.where(forced >= 0, forced, ops.cast(instance, "int32"))
    in_crowd = held_by_crowds(shared, areas, filled & is_crowd, crowd_threshold)
    return matches_of(
        anchors, boxes, classes, instance, positive=positive, ignored=ignored | in_crowd
    )


def usable_boxes(boxes: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns boxes [B, N, 4] without numbers that are not finite, and [B, N] bool: may they match.

    Padding, boxes without area and boxes with numbers that are not finite may not.
    """
    filled = ops.all(ops.isfinite(boxes), axis=-1) & (classes > 0)
    boxes = ops.where(filled[..., None], boxes, 0.0)
    return boxes, filled & (box_areas(boxes) > 0)


def held_by_crowds(shared: Tensor, areas: Tensor, crowds: Tensor, threshold: float) -> Tensor:
    """Returns [B, A] bool: does one crowd hold at least this share of the anchor.

    Args:
        shared: [B, N, A] area that each box shares with each anchor.
        areas: [A] of the anchors.
        crowds: [B, N] bool, which boxes are crowds.
        threshold: Least share of the anchor's area.
    """
    held = ops.max(shared * ops.cast(crowds[..., None], shared.dtype), axis=1)
    return held >= threshold * areas


def matches_of(
    anchors: Tensor,
    boxes: Tensor,
    classes: Tensor,
    instance: Tensor,
    *,
    positive: Tensor,
    ignored: Tensor,
) -> Matches:
    """Returns the matches of anchors whose instance is known.

    Args:
        anchors: [A, 4].
        boxes: [B, N, 4].
        classes: [B, N] integer.
        instance: [B, A] number of the instance, read where positive.
        positive: [B, A] bool.
        ignored: [B, A] bool, read where not positive.
    """
    found_classes, found_boxes = _gather_instances(classes, boxes, instance)
    background = ops.where(ignored, IGNORED, 0)
    return Matches(
        ops.where(positive, ops.cast(found_classes, "int32"), background),
        ops.where(positive[..., None], found_boxes, anchors),
    )


def _forced_instances(iou: Tensor) -> Tensor:
    """Returns [B, A] int32: the instance that has this anchor for its best, or -1."""
    batch, count, num_anchors = ops.shape(iou)
    best_anchor = ops.cast(ops.argmax(iou, axis=2), "int32")  # [B, N]
    touches = ops.max(iou, axis=2) > 0
    same = (best_anchor[:, :, None] == best_anchor[:, None, :]) & touches[:, None, :]
    order = ops.arange(count)
    taken = ops.any(same & (order[None, :] < order[:, None]), axis=2)  # by an earlier instance
    # The rest, each on an anchor of its own, is written; what is not goes to one slot past the end.
    slot = ops.where(touches & ops.logical_not(taken), best_anchor, num_anchors)
    rows = ops.broadcast_to(ops.arange(batch)[:, None], ops.shape(slot))
    indices = ops.reshape(ops.stack([rows, slot], axis=-1), (-1, 2))
    values = ops.reshape(ops.broadcast_to(order + 1, ops.shape(slot)), (-1,))
    written = ops.scatter(
        ops.cast(indices, "int32"), ops.cast(values, "int32"), (batch, num_anchors + 1)
    )
    return written[:, :num_anchors] - 1


def _gather_instances(classes: Tensor, boxes: Tensor, instance: Tensor) -> tuple[Tensor, Tensor]:
    # [B, N], [B, N, 4] and [B, A] -> [B, A] and [B, A, 4]; as rows of the flattened batch.
    batch, count = ops.shape(classes)
    rows = ops.cast(instance, "int32") + ops.cast(ops.arange(batch) * count, "int32")[:, None]
    found_boxes = ops.take(ops.reshape(boxes, (-1, 4)), rows, axis=0)
    return ops.take(ops.reshape(classes, (-1,)), rows, axis=0), found_boxes
