"""Greedy non-maximum suppression, class by class, without a loop over classes."""

from typing import Any

import keras

from tpudet.detection.ops.boxes import iou_matrix
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results


def without_negative_zeros(values: Tensor) -> Tensor:
    """Returns the values with -0.0 made 0.0, which backends rank differently although equal."""
    return ops.where(values == 0, ops.zeros_like(values), values)


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    classes: Tensor,
    *,
    iou_threshold: float,
    max_detections: int,
) -> Tensor:
    """Returns the rows [B, max_detections] int32 that stay, by falling score; padding is -1.

    The rule: take the row of highest score (of equals, the first), drop all rows of its class that
    overlap it by more than `iou_threshold`, and repeat. That is greedy suppression within each
    class, followed by a cut at the `max_detections` best of all classes, because a row taken later
    cannot drop one taken earlier. Classes are compared as they are: to move boxes apart by class,
    as is common, costs float32 the low digits of their coordinates.

    One step a detection, each over [B, K] numbers, so the cost does not grow with K squared.

    Args:
        boxes: [B, K, 4].
        scores: [B, K]; rows at minus infinity are no candidates.
        classes: [B, K] integer.
        iou_threshold: IoU over which the lower row is dropped, 0..1.
        max_detections: Rows to return.
    """
    batch, count = ops.shape(scores)
    flat_boxes = ops.reshape(boxes, (-1, 4))
    flat_classes = ops.reshape(classes, (-1,))
    first_rows = ops.cast(ops.arange(batch) * count, "int32")
    places = ops.arange(count, dtype="int32")
    slots = ops.arange(max_detections, dtype="int32")

    def more(step: Tensor, scores: Tensor, kept: Tensor) -> Tensor:
        del kept
        return (step < max_detections) & ops.any(scores > -float("inf"))

    def take_best(step: Tensor, scores: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = ops.cast(ops.argmax(scores, axis=1), "int32")  # [B]
        found = ops.max(scores, axis=1) > -float("inf")
        row = best + first_rows
        box = ops.take(flat_boxes, row, axis=0)[:, None]
        overlaps = iou_matrix(box, boxes)[:, 0] > iou_threshold
        same_class = classes == ops.take(flat_classes, row, axis=0)[:, None]
        dropped = (overlaps & same_class) | (places == best[:, None])
        kept = ops.where(slots == step, ops.where(found, best, -1)[:, None], kept)
        return step + 1, ops.where(dropped, -float("inf"), scores), kept

    nothing = ops.full((batch, max_detections), -1, dtype="int32")
    step = ops.convert_to_tensor(0, "int32")
    scores = without_negative_zeros(scores)
    return ops.while_loop(more, take_best, (step, scores, nothing))[2]
