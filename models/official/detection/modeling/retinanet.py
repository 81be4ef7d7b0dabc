"""RetinaNet (Lin et al., arXiv 1708.02002): the model and its training and inference task."""

from collections.abc import Callable, Sequence
from typing import Literal

import keras
import numpy as np

from tpudet.detection.modeling.losses import centerness_loss
from tpudet.detection.ops.anchors import check_anchor_count
from tpudet.detection.ops.atss import centerness
from tpudet.detection.ops.boxes import Padding, decode_boxes, image_regions, padded_images
from tpudet.detection.ops.matching import Matches
from tpudet.detection.ops.overlaps import paired_iou
from tpudet.detection.types import Batch, Detections, RawPredictions
from tpudet.trainkit.backbones.pixels import normalize_pixels
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

# (anchors [A, 4], boxes [B, N, 4], classes [B, N], is_crowd [B, N]) -> targets of the anchors
Match = Callable[[Tensor, Tensor, Tensor, Tensor], Matches]
# (class_logits [B, A, C], targets [B, A], quality [B, A], normalizer) -> scalar
ClassLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# (box_deltas [B, A, 4], boxes [B, A, 4], anchors [A, 4], weights [B, A], normalizer) -> scalar
BoxLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
# (predictions, anchors [A, 4], regions of the images [B, 4]) -> detections
Postprocess = Callable[[RawPredictions, Tensor, Tensor], Detections]


class RetinaNet(keras.Model):
    """Predicts class logits and box deltas for every anchor.

    All variables are created in the constructor. Pixels are normalised in the model, so the black
    padding of a canvas becomes `-mean / std`; in systems that pad after normalising it is 0.

    Args:
        backbone: layer [B, H, W, 3] -> {level: features}, with `channels` by level. Without levels
            coarser than the neck needs: they would have no gradient.
        neck: layer {level: features} -> {level: features} of `num_filters` channels.
        head: layer {level: features} -> RawPredictions.
        pixel_mean: mean of each colour, for pixels in 0..1.
        pixel_std: standard deviation of each colour.
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
        self.pixel_mean = tuple(pixel_mean)
        self.pixel_std = tuple(pixel_std)
        # Built here, outside the model's own name scope: paths begin with the part's name.
        backbone.build((None, None, None, 3))
        neck.build({level: (None, None, None, n) for level, n in backbone.channels.items()})
        head.build((None, None, None, neck.num_filters))
        self.built = True

    def call(self, images: Tensor, training: bool = False) -> RawPredictions:
        """Predicts for images [B, H, W, 3] uint8, sides multiples of `PyramidConfig.stride`."""
        pixels = normalize_pixels(
            images,
            pixel_mean=self.pixel_mean,
            pixel_std=self.pixel_std,
            dtype=self.compute_dtype,
        )
        features = self.backbone(pixels, training=training)
        return self.head(self.neck(features, training=training), training=training)


class RetinaNetTask:
    """A RetinaNet with its losses and its postprocessing: a Task of `tpudet.trainkit.training`.

    Args:
        model: the network.
        anchors: [A, 4], in the order of the model's predictions.
        sum_over_replicas: adds up a scalar over all replicas; the identity if there is one.
        match: assigns objects to anchors: `match_argmax_iou` or `match_atss` with its settings.
        class_loss: a class loss of `modeling.losses` with its settings.
        box_loss: a box loss of `modeling.losses` with its settings.
        box_loss_weight: factor of the box loss.
        loss_normalization: "batch" divides the losses' sums by the positive anchors of all replicas
            plus 1; "image" those of each image by its own, 1 at least, and averages over images.
        padding: what the network sees beyond an image, "black" pixels or the "mean" colour.
        postprocess: `modeling.postprocess.postprocess` with its settings.

    Raises:
        ValueError: the number of anchors is not that of the model's predictions; at the first use.
    """

    class_layers = ("head/class_predict",)  # paths; their weights belong to the class list

    def __init__(
        self,
        *,
        model: RetinaNet,
        anchors: np.ndarray,
        sum_over_replicas: Callable[[Tensor], Tensor],
        match: Match,
        class_loss: ClassLoss,
        box_loss: BoxLoss,
        box_loss_weight: float,
        loss_normalization: Literal["batch", "image"],
        padding: Padding,
        postprocess: Postprocess,
    ):
        self.model = model
        self.anchors = anchors
        self.sum_over_replicas = sum_over_replicas
        self.match = match
        self.class_loss = class_loss
        self.box_loss = box_loss
        self.box_loss_weight = box_loss_weight
        self.loss_normalization = loss_normalization
        self.padding: Padding = padding
        self.postprocess = postprocess

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Returns this replica's share of "loss_class", "loss_box" and their sum "loss".

        A head with centerness adds "loss_centerness". Boxes then count as much as they should be
        central, and their loss is divided by the sum of that instead of the number of anchors.
        """
        class_logits, box_deltas, centerness_logits = self._raw_predictions(batch, training=True)
        matches = self.match(self.anchors, batch.boxes, batch.classes, batch.is_crowd)
        positive = ops.cast(matches.classes > 0, "float32")
        normalizer = self._normalizer(ops.sum(positive, axis=1))
        anchors = ops.convert_to_tensor(self.anchors)
        quality = paired_iou(decode_boxes(ops.stop_gradient(box_deltas), anchors), matches.boxes)
        losses = {"loss_class": self.class_loss(class_logits, matches.classes, quality, normalizer)}
        weights, weight_normalizer = positive, normalizer
        if centerness_logits is not None:
            weights = positive * centerness(anchors, matches.boxes)
            weight_normalizer = self._normalizer(ops.sum(weights, axis=1))
            losses["loss_centerness"] = centerness_loss(
                centerness_logits, weights, positive, normalizer
            )
        losses["loss_box"] = self.box_loss_weight * self.box_loss(
            box_deltas, matches.boxes, anchors, weights, weight_normalizer
        )
        return losses | {"loss": sum(losses.values())}

    def predict(self, batch: Batch) -> Detections:
        """Returns the detections of each image, clipped to the image; without masks."""
        predictions = self._raw_predictions(batch, training=False)
        return self.postprocess(predictions, self.anchors, image_regions(batch))

    def _normalizer(self, positives: Tensor) -> Tensor:
        # [B], positive anchors -> [] or [B]
        if self.loss_normalization == "batch":
            return self.sum_over_replicas(ops.sum(positives)) + 1.0
        num_images = self.sum_over_replicas(ops.sum(ops.ones_like(positives)))
        return ops.maximum(positives, 1.0) * num_images

    def _raw_predictions(self, batch: Batch, training: bool) -> RawPredictions:
        images = padded_images(batch, self.padding, mean=self.model.pixel_mean)
        predictions = self.model(images, training=training)
        check_anchor_count(predictions, self.anchors)
        return predictions
