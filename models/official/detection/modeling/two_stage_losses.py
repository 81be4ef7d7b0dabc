"""The losses of two-stage detectors, each this replica's share.

Normalisers are scalars over all replicas and get no gradient. Box losses are smooth L1 on encoded
boxes, summed over their four numbers (Girshick, arXiv 1504.08083, equation 3); `beta` is the end of
the parabola, 0 for plain L1.
"""

from collections.abc import Sequence

from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.ops.boxes import encode_boxes
from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.matching import Matches
from tpudet.detection.ops.sampling import Draw, SampledRois
from tpudet.detection.types import RawPredictions
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def rpn_losses(
    predictions: RawPredictions,
    anchors: Tensor,
    matches: Matches,
    draw: Draw,
    normalizer: Tensor,
    *,
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Returns the objectness loss, a binary cross-entropy, and the box loss of the drawn anchors.

    Args:
        predictions: [B, A, 1] logits and [B, A, 4] deltas, float32.
        anchors: [A, 4].
        matches: targets of the anchors.
        draw: the anchors that count.
        normalizer: anchors drawn per image, times the images of all replicas, as in Detectron.
        beta: where the smooth L1 loss turns linear.
    """
    logits = gather_rows(predictions.class_logits[..., 0], draw.rows)
    target = ops.cast(draw.positive, "float32")
    costs = ops.where(draw.valid, ops.softplus(logits) - target * logits, 0.0)
    drawn = ops.take(ops.convert_to_tensor(anchors), draw.rows, axis=0)
    deltas = gather_rows(predictions.box_deltas, draw.rows)
    targets = encode_boxes(gather_rows(matches.boxes, draw.rows), drawn)
    box_loss = _sum_smooth_l1(deltas, targets, draw.positive, beta)
    return ops.sum(costs) / normalizer, box_loss / normalizer


def box_head_losses(
    predictions: BoxPredictions,
    rois: SampledRois,
    normalizer: Tensor,
    *,
    box_weights: Sequence[float],
    beta: float,
) -> tuple[Tensor, Tensor]:
    """Returns the class loss, a softmax cross-entropy, and the box loss.

    Args:
        predictions: of the sampled regions.
        rois: sampled regions with their ground truth.
        normalizer: regions with a class or background, of all replicas.
        box_weights: factors of the encoded boxes: y, x, height, width.
        beta: where the smooth L1 loss turns linear.
    """
    counted, positive = rois.classes >= 0, rois.classes > 0
    target = ops.maximum(rois.classes, 0)
    logits = predictions.class_logits
    at_target = ops.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    costs = ops.where(counted, ops.logsumexp(logits, axis=-1) - at_target, 0.0)

    # The deltas of the target's class, or those that all classes share.
    num_sets = predictions.box_deltas.shape[2]
    channel = ops.clip(target - 1, 0, num_sets - 1)
    deltas = ops.take_along_axis(predictions.box_deltas, channel[..., None, None], axis=2)[:, :, 0]
    # Regions without an instance may be empty: they are measured against a box of one pixel.
    whole = ops.convert_to_tensor([0.0, 0.0, 1.0, 1.0])
    boxes = ops.where(positive[..., None], rois.boxes, whole)
    matched = ops.where(positive[..., None], rois.matched_boxes, whole)
    targets = encode_boxes(matched, boxes) * ops.convert_to_tensor(box_weights, "float32")
    box_loss = _sum_smooth_l1(deltas, targets, positive, beta)
    return ops.sum(costs) / normalizer, box_loss / normalizer


def mask_loss(logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Returns the sum over masks of the mean binary cross-entropy per pixel, [].

    Args:
        logits: [B, K, M, M] float32.
        targets: [B, K, M, M] float32, 0..1.
        counted: [B, K] bool.
    """
    costs = ops.mean(ops.softplus(logits) - targets * logits, axis=(2, 3))
    return ops.sum(ops.where(counted, costs, 0.0))


def _sum_smooth_l1(deltas: Tensor, targets: Tensor, counted: Tensor, beta: float) -> Tensor:
    # [..., 4], [..., 4] and [...] bool -> []
    differences = ops.abs(deltas - ops.stop_gradient(targets))
    if beta:
        within = ops.minimum(differences, beta)
        differences = within * (differences - 0.5 * within) / beta
    return ops.sum(ops.where(counted[..., None], differences, 0.0))
