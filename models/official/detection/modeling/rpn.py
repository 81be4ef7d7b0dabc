"""The region proposal network of two-stage detectors (Ren et al., arXiv 1506.01497, section 3.1).

On feature pyramids as in Lin et al., arXiv 1612.03144, section 4.1: one head shared by all levels.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from tpudet.detection.ops.boxes import clip_to_regions, decode_boxes
from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.nms import non_max_suppression, without_negative_zeros
from tpudet.detection.types import RawPredictions
from tpudet.trainkit.backbones.layers import Conv
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class Proposals(NamedTuple):
    """Regions that may hold an object, in descending order of objectness; valid ones come first."""

    boxes: Tensor  # [B, P, 4] float32, canvas pixels; padding is 0
    valid: Tensor  # [B, P] bool


class RPNHead(keras.layers.Layer):
    """Predicts one objectness logit and four box deltas for every anchor.

    Args:
        anchors_per_location: scales times aspect ratios.
        num_convs: 3x3 convolutions before the two predictors, each followed by a ReLU.
        num_filters: channels of each.
        name: name of the layer, the first part of its variables' paths.
    """

    def __init__(
        self,
        *,
        anchors_per_location: int,
        num_convs: int,
        num_filters: int,
        name: str = "rpn",
    ):
        super().__init__(name=name)

        def conv(filters: int, kernel_size: int, name: str, *, predicts: bool) -> Conv:
            return Conv(
                filters,
                kernel_size,
                float32_outputs=predicts,
                kernel_initializer=keras.initializers.RandomNormal(0.0, 0.01),
                name=name,
            )

        self.convs = [
            conv(num_filters, 3, f"conv{index}", predicts=False) for index in range(num_convs)
        ]
        self.object_predict = conv(anchors_per_location, 1, "object_predict", predicts=True)
        self.box_predict = conv(4 * anchors_per_location, 1, "box_predict", predicts=True)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the variables for pyramid features [B, H, W, channels] of any level."""
        shape = input_shape
        for conv in self.convs:
            conv.build(shape)
            shape = (None, None, None, conv.filters)
        self.object_predict.build(shape)
        self.box_predict.build(shape)

    def call(self, features: Mapping[int, Tensor]) -> RawPredictions:
        """Returns float32 predictions [B, A, 1] and [B, A, 4], in the order of the anchors."""
        logits, deltas = [], []
        for level in sorted(features):
            shared = features[level]
            for conv in self.convs:
                shared = ops.relu(conv(shared))
            _, height, width, _ = shared.shape
            num_anchors = height * width * self.object_predict.filters
            logits.append(ops.reshape(self.object_predict(shared), (-1, num_anchors, 1)))
            deltas.append(ops.reshape(self.box_predict(shared), (-1, num_anchors, 4)))
        return RawPredictions(ops.concatenate(logits, axis=1), ops.concatenate(deltas, axis=1))


def propose(
    predictions: RawPredictions,
    anchors: Tensor,
    regions: Tensor,
    *,
    anchors_per_level: Sequence[int],
    iou_threshold: float,
    max_candidates: int,
    max_proposals: int,
    min_score: float,
    min_side: float,
) -> Proposals:
    """Decodes the anchors of highest objectness and suppresses duplicates within each level.

    As in torchvision and Detectron2: the best of each level are candidates, and what suppression
    leaves of all levels is ranked together. Nothing gets a gradient.

    Args:
        predictions: [B, A, 1] logits and [B, A, 4] deltas, float32.
        anchors: [A, 4].
        regions: [B, 4], the part of each canvas that boxes are clipped to.
        anchors_per_level: number of anchors of each level, finest first.
        iou_threshold: of two boxes of a level with a higher IoU the lower-scoring one is dropped.
        max_candidates: anchors per level that enter suppression.
        max_proposals: P, proposals per image.
        min_score: anchors of a lower objectness, 0..1, are dropped.
        min_side: boxes with a side of no more than this many pixels are dropped.
    """
    logits = ops.stop_gradient(without_negative_zeros(predictions.class_logits[..., 0]))
    rows, ranks, levels = [], [], []
    start = 0
    for level, count in enumerate(anchors_per_level):
        best, places = ops.top_k(logits[:, start : start + count], min(count, max_candidates))
        rows.append(ops.cast(places, "int32") + start)
        ranks.append(best)
        levels.append(np.full(best.shape[1], level, np.int32))
        start += count
    rows, ranks = ops.concatenate(rows, axis=1), ops.concatenate(ranks, axis=1)
    deltas = gather_rows(ops.stop_gradient(predictions.box_deltas), rows)
    boxes = decode_boxes(deltas, ops.take(ops.convert_to_tensor(anchors), rows, axis=0))
    boxes = clip_to_regions(boxes, regions)
    large = ops.all(boxes[..., 2:] - boxes[..., :2] > min_side, axis=-1)
    kept = non_max_suppression(
        boxes,
        ops.where(large & (ops.sigmoid(ranks) >= min_score), ranks, -float("inf")),
        ops.zeros_like(rows) + np.concatenate(levels),
        iou_threshold=iou_threshold,
        max_detections=max_proposals,
    )
    valid = kept >= 0
    boxes = gather_rows(boxes, ops.maximum(kept, 0))
    return Proposals(ops.where(valid[..., None], boxes, 0.0), valid)
