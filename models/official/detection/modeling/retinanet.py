"""RetinaNet (Lin et al., arXiv 1708.02002): the model, and the task that trains and asks it."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tpudet.detection.modeling.losses import focal_loss, huber_box_loss
from tpudet.detection.modeling.postprocess import detections_of
from tpudet.detection.ops.boxes import decode_boxes
from tpudet.detection.ops.matching import Matches, match_argmax_iou
from tpudet.detection.ops.overlaps import paired_iou
from tpudet.detection.types import Batch, Detections, RawPredictions
from tpudet.trainkit.types import Tensor

ops: Any = keras.ops  # annotated with None among its results

# (anchors [A, 4], boxes [B, N, 4], classes [B, N], is_crowd [B, N]) -> what each anchor should say
Match = Callable[[Tensor, Tensor, Tensor, Tensor], Matches]
# (class_logits [B, A, C], targets [B, A], quality [B, A], normalizer) -> scalar
ClassLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# (box_deltas [B, A, 4], boxes [B, A, 4], anchors [A, 4], positive [B, A], normalizer) -> scalar
BoxLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class RetinaNet(keras.Model):
    """Pictures to an answer for every anchor; every variable exists once it is constructed.

    Normalisation happens here, so the black that fills a canvas beside its picture becomes
    `-mean / std`, not 0 as in systems that pad after normalising.

    Args:
        backbone: Layer [B, H, W, 3] -> {level: features}, with `channels` a level. Without levels
            coarser than the neck needs: they would have no gradient.
        neck: Layer {level: features} -> {level: features} of `num_filters` channels.
        head: Layer {level: features} -> RawPredictions.
        pixel_mean: Mean of each colour, of pixels as 0..1.
        pixel_std: Standard deviation of each colour.
    """

    def __init__(
        self,
        *,
        backbone: keras.layers.Layer,
        neck: keras.layers.Layer,
        head: keras.layers.Layer,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
    ):
        super().__init__(name="retinanet")
        self.backbone = backbone
        self.neck = neck
        self.head = head
        mean, std = np.asarray(pixel_mean, np.float64), np.asarray(pixel_std, np.float64)
        self.pixel_scale = tuple(1.0 / (255.0 * std))
        self.pixel_shift = tuple(-mean / std)
        # Built here, outside the model's own name scope: paths begin with the part's name.
        backbone.build((None, None, None, 3))
        neck.build({level: (None, None, None, n) for level, n in backbone.channels.items()})
        head.build((None, None, None, neck.num_filters))
        self.built = True

    def normalize(self, images: Tensor) -> Tensor:
        """Returns `(images / 255 - mean) / std` as one multiplication and one addition."""
        scale = ops.convert_to_tensor(self.pixel_scale, "float32")
        shift = ops.convert_to_tensor(self.pixel_shift, "float32")
        return ops.cast(ops.cast(images, "float32") * scale + shift, self.compute_dtype)

    def call(self, images: Tensor, training: bool = False) -> RawPredictions:
        """Answers for images [B, H, W, 3] uint8, sides multiples of 2**max_level."""
        features = self.backbone(self.normalize(images), training=training)
        return self.head(self.neck(features, training=training), training=training)


class RetinaNetTask:
    """A RetinaNet with its losses and its postprocessing: a Task of `tpudet.trainkit.training`.

    Args:
        model: The network.
        anchors: [A, 4], in the order of the model's answers.
        canvas_size: Height and width in pixels.
        sum_over_replicas: Adds a scalar up over all replicas; the identity where there is one.
        match: `match_argmax_iou` or `match_atss`, its settings bound.
        class_loss: One of `modeling.class_losses`, its settings bound.
        box_loss: One of `modeling.box_losses`, its settings bound.
        box_loss_weight: Factor of the box loss.
        score_threshold: As of `detections_of`.
        iou_threshold: As of `detections_of`.
        max_candidates: As of `detections_of`.
        max_detections: As of `detections_of`.

    Raises:
        ValueError: Anchors that do not fit the model's answers, at the first use.
    """

    def __init__(
        self,
        *,
        model: RetinaNet,
        anchors: np.ndarray,
        canvas_size: tuple[int, int],
        sum_over_replicas: Callable[[Tensor], Tensor],
        match: Match = match_argmax_iou,
        class_loss: ClassLoss = focal_loss,
        box_loss: BoxLoss = huber_box_loss,
        box_loss_weight: float = 50.0,
        score_threshold: float = 0.05,
        iou_threshold: float = 0.5,
        max_candidates: int = 5000,
        max_detections: int = 100,
    ):
        self.model = model
        self.anchors = anchors
        self.canvas_size = canvas_size
        self.sum_over_replicas = sum_over_replicas
        self.match = match
        self.class_loss = class_loss
        self.box_loss = box_loss
        self.box_loss_weight = box_loss_weight
        self.score_threshold = score_threshold
        self.iou_threshold = iou_threshold
        self.max_candidates = max_candidates
        self.max_detections = max_detections

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Returns this replica's share of "loss_class", "loss_box" and their sum "loss"."""
        class_logits, box_deltas = self._answers(batch, training=True)
        matches = self.match(self.anchors, batch.boxes, batch.classes, batch.is_crowd)
        positive = matches.classes > 0
        normalizer = self.sum_over_replicas(ops.sum(ops.cast(positive, "float32"))) + 1.0
        anchors = ops.convert_to_tensor(self.anchors)
        quality = paired_iou(decode_boxes(ops.stop_gradient(box_deltas), anchors), matches.boxes)
        loss_class = self.class_loss(class_logits, matches.classes, quality, normalizer)
        loss_box = self.box_loss_weight * self.box_loss(
            box_deltas, matches.boxes, anchors, positive, normalizer
        )
        return {"loss_class": loss_class, "loss_box": loss_box, "loss": loss_class + loss_box}

    def predict(self, batch: Batch) -> Detections:
        """Returns the detections of each image, clipped to the canvas."""
        return detections_of(
            self._answers(batch, training=False),
            self.anchors,
            canvas_size=self.canvas_size,
            score_threshold=self.score_threshold,
            iou_threshold=self.iou_threshold,
            max_candidates=self.max_candidates,
            max_detections=self.max_detections,
        )

    def _answers(self, batch: Batch, training: bool) -> RawPredictions:
        predictions = self.model(batch.images, training=training)
        found, expected = predictions.class_logits.shape[1], len(self.anchors)
        if found != expected:
            raise ValueError(
                f"The model answers for {found} anchors, the task has {expected}: canvas size, "
                f"levels, scales and aspect ratios must be the same for both."
            )
        return predictions
