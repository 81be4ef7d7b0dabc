"""Greedy non-maximum suppression per class, without a loop over classes."""

from tpudet.detection.ops.boxes import iou_matrix
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def without_negative_zeros(values: Tensor) -> Tensor:
    """Replaces -0.0 with 0.0: they are equal, yet backends rank them differently."""
    return ops.where(values == 0, ops.zeros_like(values), values)


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    classes: Tensor,
    *,
    iou_threshold: float,
    max_detections: int,
) -> Tensor:
    """Returns the kept rows [B, max_detections] int32 by descending score, padded with -1.

    The rule: keep the row of highest score (the first of equal ones), drop all rows of its class
    whose IoU with it exceeds `iou_threshold`, and repeat. This equals greedy suppression within
    each class followed by keeping the `max_detections` best of all classes, because a row kept
    later cannot drop one kept earlier. Classes are compared directly: the common trick of shifting
    boxes apart by class costs the low digits of float32 coordinates.

    Takes one step per detection over [B, K], so the cost does not grow with K squared.

    Args:
        boxes: [B, K, 4].
        scores: [B, K]; minus infinity excludes a row.
        classes: [B, K] integer.
        iou_threshold: IoU above which the row of lower score is dropped, 0..1.
        max_detections: Number of rows to return.
    """
    batch, count = ops.shape(scores)
    flat_boxes = ops.reshape(boxes, (-1, 4))
    flat_classes = ops.reshape(classes, (-1,))
    first_rows = ops.cast(ops.arange(batch) * count, "int32")
    places = ops.arange(count, dtype="int32")
    slots = ops.arange(max_detections, dtype="int32")

    def continues(step: Tensor, scores: Tensor, kept: Tensor) -> Tensor:
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
    return ops.while_loop(continues, take_best, (step, scores, nothing))[2]
