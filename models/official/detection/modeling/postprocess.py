"""Turns the raw predictions of a one-stage detector into detections."""

from collections.abc import Sequence

from tpudet.detection.ops.boxes import clip_to_regions, decode_boxes
from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.nms import non_max_suppression, without_negative_zeros
from tpudet.detection.types import Detections, RawPredictions
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def postprocess(
    predictions: RawPredictions,
    anchors: Tensor,
    regions: Tensor,
    *,
    score_threshold: float,
    iou_threshold: float,
    max_candidates: int,
    max_detections: int,
    max_candidates_per_level: int | None = None,
    anchors_per_level: Sequence[int] = (),
    class_agnostic: bool = False,
) -> Detections:
    """Decodes boxes, clips them to the image and suppresses duplicates within each class.

    To the image and not to the canvas: a box in the padding would become a detection without area
    once it is moved to the original image.

    Candidates are the `max_candidates` pairs of anchor and class with the highest logits over all
    classes (ties go to the lower anchor, then to the lower class), or those among the best of each
    level, provided that the score, the sigmoid of the logit, exceeds the threshold and the clipped
    box has an area. Suppression is exact; see `ops.nms`.

    With centerness the candidates are the same. Then their scores are multiplied by it, as in
    MMDetection's ATSS, and suppression and the order of detections go by the product.

    Args:
        predictions: [B, A, C] logits, [B, A, 4] deltas and [B, A] centerness or None, float32.
        anchors: [A, 4].
        regions: [B, 4], the part of each canvas that shows the image: `image_regions`.
        score_threshold: scores must exceed it, before centerness; 0.0 admits everything.
        iou_threshold: of two boxes of a class with a higher IoU the lower-scoring one is dropped.
        max_candidates: pairs per image that enter suppression.
        max_detections: K, detections per image.
        max_candidates_per_level: pairs of each level that may be among them; None: no limit.
        anchors_per_level: number of anchors of each level, finest first; read with such a limit.
        class_agnostic: whether boxes of different classes suppress each other too.
    """
    if max_candidates_per_level is None:
        logits, anchor, channel = top_pairs(predictions.class_logits, max_candidates)
    else:
        logits, anchor, channel = _top_pairs_per_level(
            predictions.class_logits, anchors_per_level, max_candidates_per_level, max_candidates
        )
    deltas = gather_rows(predictions.box_deltas, anchor)
    boxes = decode_boxes(deltas, ops.take(ops.convert_to_tensor(anchors), anchor, axis=0))
    boxes = clip_to_regions(boxes, regions)

    has_area = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    is_candidate = (ops.sigmoid(logits) > score_threshold) & has_area
    scores, ranks = _rank(logits, predictions.centerness_logits, anchor)
    ranks = ops.where(is_candidate, ranks, -float("inf"))
    groups = ops.zeros_like(channel) if class_agnostic else channel
    kept = non_max_suppression(
        boxes, ranks, groups, iou_threshold=iou_threshold, max_detections=max_detections
    )
    return gather_detections(kept, boxes=boxes, scores=scores, channel=channel)


def _rank(logits: Tensor, centerness: Tensor | None, anchor: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scores and what orders them: float32 rounds large unequal logits to one score."""
    scores = ops.sigmoid(logits)
    if centerness is None:
        return scores, logits
    central = ops.take_along_axis(centerness, anchor, axis=1)
    logarithm = -ops.softplus(-logits) - ops.softplus(-central)  # of the product
    return scores * ops.sigmoid(central), logarithm


def top_pairs(class_logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits, anchors and channels [B, K] of the highest logits of [B, A, C].

    They are in descending order. Ties go to the lower anchor, then to the lower channel. K is
    `count`, or A * C if that is less. Exact in two steps: a pair among the best `count` belongs to
    an anchor that is among the best `count` by its best class, since each better anchor has a
    better pair. So only the rows of those anchors are sorted.
    """
    num_anchors, num_classes = class_logits.shape[1:]
    rows = min(count, num_anchors)
    best = without_negative_zeros(ops.max(class_logits, axis=-1))  # [B, A]
    anchors = ops.cast(ops.top_k(best, rows)[1], "int32")
    anchors = ops.sort(anchors, axis=-1)  # so that equal logits come in the order of anchors
    candidates = gather_rows(class_logits, anchors)
    flat = without_negative_zeros(ops.reshape(candidates, (-1, rows * num_classes)))
    logits, pairs = ops.top_k(flat, min(count, rows * num_classes))
    pairs = ops.cast(pairs, "int32")
    anchors = ops.take_along_axis(anchors, pairs // num_classes, axis=1)
    return logits, anchors, pairs % num_classes


def _top_pairs_per_level(
    class_logits: Tensor, anchors_per_level: Sequence[int], count: int, total: int
) -> tuple[Tensor, Tensor, Tensor]:
    # As `top_pairs`: the best `total` among the best `count` of each level.
    levels, start = [], 0
    for num_anchors in anchors_per_level:
        logits, anchors, channels = top_pairs(class_logits[:, start : start + num_anchors], count)
        levels.append((logits, anchors + start, channels))
        start += num_anchors
    logits, anchors, channels = (
        ops.concatenate(part, axis=1) for part in zip(*levels, strict=True)
    )
    logits, order = ops.top_k(logits, min(total, logits.shape[1]))
    order = ops.cast(order, "int32")
    return (
        logits,
        ops.take_along_axis(anchors, order, axis=1),
        ops.take_along_axis(channels, order, axis=1),
    )


def gather_detections(
    kept: Tensor, *, boxes: Tensor, scores: Tensor, channel: Tensor
) -> Detections:
    """Returns the rows that suppression kept as detections without masks.

    Args:
        kept: [B, K] int32, rows of the candidates; -1 for none.
        boxes: [B, n, 4] of the candidates.
        scores: [B, n].
        channel: [B, n] int32; k is class k + 1.
    """
    found, rows = kept >= 0, ops.maximum(kept, 0)
    return Detections(
        boxes=ops.where(found[..., None], gather_rows(boxes, rows), 0.0),
        scores=ops.where(found, gather_rows(scores, rows), 0.0),
        classes=ops.where(found, gather_rows(channel, rows) + 1, 0),
        num_detections=ops.sum(ops.cast(found, "int32"), axis=1),
    )
