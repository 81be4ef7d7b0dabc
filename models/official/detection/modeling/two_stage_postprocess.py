"""Turns the predictions of box heads into detections."""

import math
from collections.abc import Sequence

from tpudet.detection.modeling.postprocess import gather_detections, top_pairs
from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.ops.boxes import clip_boxes, clip_to_regions, decode_boxes
from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.nms import non_max_suppression
from tpudet.detection.types import Detections
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def log_scores(logits: Sequence[Tensor]) -> Tensor:
    """Returns the logarithm of each foreground class's score, [B, K, C] float32.

    The score is the softmax, averaged over the stages of a cascade (Cai and Vasconcelos, arXiv
    1712.00726, section 4).

    Args:
        logits: class logits [B, K, C + 1] of each stage.
    """
    stages = [ops.log_softmax(stage, axis=-1)[..., 1:] for stage in logits]
    if len(stages) == 1:
        return stages[0]
    return ops.logsumexp(ops.stack(stages), axis=0) - math.log(len(stages))


def refine_rois(
    rois: Tensor,
    predictions: BoxPredictions,
    *,
    box_weights: Sequence[float],
    canvas_size: tuple[int, int],
) -> Tensor:
    """Returns the boxes [B, K, 4] that a stage of a cascade hands to the next, without gradient.

    Each moves by the deltas of its best foreground class, and is clipped to the canvas.
    """
    deltas, logits = predictions.box_deltas, predictions.class_logits[..., 1:]
    if deltas.shape[2] == 1:
        deltas = deltas[:, :, 0]
    else:
        best = ops.argmax(logits, axis=-1)[..., None, None]
        deltas = ops.take_along_axis(deltas, best, axis=2)[:, :, 0]
    boxes = decode_boxes(deltas / ops.convert_to_tensor(box_weights, "float32"), rois)
    return ops.stop_gradient(clip_boxes(boxes, height=canvas_size[0], width=canvas_size[1]))


def postprocess_rois(
    scores: Tensor,
    box_deltas: Tensor,
    rois: Tensor,
    valid: Tensor,
    regions: Tensor,
    *,
    box_weights: Sequence[float],
    score_threshold: float,
    iou_threshold: float,
    max_candidates: int,
    max_detections: int,
) -> Detections:
    """Decodes boxes, clips them to the image and suppresses duplicates within each class.

    Candidates are the `max_candidates` pairs of region and class with the highest scores, provided
    that the score exceeds the threshold and the clipped box has an area.

    Args:
        scores: [B, K, C] float32, logarithms.
        box_deltas: [B, K, C, 4] or [B, K, 1, 4] float32, of the last stage.
        rois: [B, K, 4] float32, that the deltas belong to.
        valid: [B, K] bool.
        regions: [B, 4], the part of each canvas that shows the image: `image_regions`.
        box_weights: factors of the deltas: y, x, height, width.
        score_threshold: scores must exceed it; 0.0 admits everything.
        iou_threshold: of two boxes of a class with a higher IoU the lower-scoring one is dropped.
        max_candidates: pairs per image that enter suppression.
        max_detections: K, detections per image.

    Returns:
        Detections without masks.
    """
    scores = ops.where(valid[..., None], scores, -float("inf"))
    ranks, roi, channel = top_pairs(scores, max_candidates)
    count, num_sets = box_deltas.shape[1:3]
    deltas = ops.reshape(box_deltas, (-1, count * num_sets, 4))
    deltas = gather_rows(deltas, roi * num_sets + ops.minimum(channel, num_sets - 1))
    weights = ops.convert_to_tensor(box_weights, "float32")
    boxes = decode_boxes(deltas / weights, gather_rows(rois, roi))
    boxes = clip_to_regions(boxes, regions)

    scores = ops.exp(ranks)
    has_area = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    kept = non_max_suppression(
        boxes,
        ops.where((scores > score_threshold) & has_area, ranks, -float("inf")),
        channel,
        iou_threshold=iou_threshold,
        max_detections=max_detections,
    )
    return gather_detections(kept, boxes=boxes, scores=scores, channel=channel)
