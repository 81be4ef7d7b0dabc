"""The training and inference task of Mask R-CNN, Faster R-CNN and Cascade R-CNN."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tpudet.detection.modeling.mask_rcnn import MaskRCNN
from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.modeling.rpn import Proposals
from tpudet.detection.modeling.two_stage_losses import mask_loss
from tpudet.detection.modeling.two_stage_postprocess import log_scores, refine_rois
from tpudet.detection.ops.anchors import check_anchor_count
from tpudet.detection.ops.boxes import Padding, image_regions, padded_images
from tpudet.detection.ops.masks import mask_targets
from tpudet.detection.ops.matching import Matches
from tpudet.detection.ops.sampling import Draw, SampledRois, random_ranks, rematch_rois
from tpudet.detection.types import Batch, Detections, RawPredictions
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

# Of the slots of positives: more would waste less, and each is a branch of the compiled step.
_MASK_PARTS = 4


class BoxStage(NamedTuple):
    """Training settings of one box head; a cascade has several."""

    iou_threshold: float  # from which a region is its instance's
    box_weights: tuple[float, float, float, float]  # of the encoded boxes: y, x, height, width
    loss_weight: float


FASTER_RCNN = (BoxStage(0.5, (10.0, 10.0, 5.0, 5.0), 1.0),)
# As in the authors' code; arXiv 1712.00726, section 5.1, gives the thresholds.
CASCADE = (
    BoxStage(0.5, (10.0, 10.0, 5.0, 5.0), 1.0),
    BoxStage(0.6, (20.0, 20.0, 10.0, 10.0), 0.5),
    BoxStage(0.7, (30.0, 30.0, 15.0, 15.0), 0.25),
)


class MaskRCNNTask:
    """A Mask R-CNN with its losses and its postprocessing: a Task of `tpudet.trainkit.training`.

    Args:
        model: the network.
        anchors: [A, 4], in the order of the model's predictions.
        sum_over_replicas: adds up a scalar over all replicas; the identity if there is one.
        padding: what the network sees beyond an image, "black" pixels or the "mean" colour.
        match: assigns objects to anchors: `match_argmax_iou` with its settings.
        draw_anchors: `draw_balanced` with its settings.
        rpn_losses: `modeling.two_stage_losses.rpn_losses` with its settings.
        propose_in_training: `modeling.rpn.propose` with its settings, for the losses.
        propose: the same, for predictions.
        clip_to: what proposals are clipped to, the "canvas" or the "image" on it.
        sample_rois: `ops.sampling.sample_rois` with its settings, for the first stage.
        max_mask_rois: positives per image that the mask head is trained on: all that are sampled.
        stages: one per box head.
        box_losses: `modeling.two_stage_losses.box_head_losses` with its settings.
        postprocess: `modeling.two_stage_postprocess.postprocess_rois` with its settings.

    Raises:
        ValueError: there are not as many stages as box heads.
        ValueError: the number of anchors is not that of the model's predictions; at the first use.
    """

    def __init__(
        self,
        *,
        model: MaskRCNN,
        anchors: np.ndarray,
        sum_over_replicas: Callable[[Tensor], Tensor],
        padding: Padding,
        match: Callable[[Tensor, Tensor, Tensor, Tensor], Matches],
        draw_anchors: Callable[[Tensor, Tensor], Draw],
        rpn_losses: Callable[..., tuple[Tensor, Tensor]],
        propose_in_training: Callable[[RawPredictions, Tensor, Tensor], Proposals],
        propose: Callable[[RawPredictions, Tensor, Tensor], Proposals],
        clip_to: Literal["canvas", "image"],
        sample_rois: Callable[..., SampledRois],
        max_mask_rois: int,
        stages: Sequence[BoxStage],
        box_losses: Callable[..., tuple[Tensor, Tensor]],
        postprocess: Callable[..., Detections],
    ):
        if len(stages) != len(model.box_heads):
            raise ValueError(f"{len(stages)} stages for {len(model.box_heads)} box heads.")
        self.model = model
        self.anchors = anchors
        self.sum_over_replicas = sum_over_replicas
        self.padding: Padding = padding
        self.match = match
        self.draw_anchors = draw_anchors
        self.rpn_losses = rpn_losses
        self.propose_in_training = propose_in_training
        self.propose = propose
        self.clip_to = clip_to
        self.sample_rois = sample_rois
        self.max_mask_rois = max_mask_rois
        self.stages = stages
        self.box_losses = box_losses
        self.postprocess = postprocess

    @property
    def class_layers(self) -> tuple[str, ...]:
        """Paths of the layers whose weights belong to the class list."""
        names = [f"{head.name}/class_predict" for head in self.model.box_heads]
        names += [f"{h.name}/box_predict" for h in self.model.box_heads if not h.class_agnostic]
        if self.model.mask_head is not None:
            names.append(f"{self.model.mask_head.name}/mask_predict")
        return tuple(names)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Returns this replica's share of each loss and of their sum "loss".

        They are "loss_rpn_class", "loss_rpn_box", "loss_class", "loss_box" and, with a mask head,
        "loss_mask".

        Raises:
            ValueError: the model predicts masks and the batch has none.
        """
        if self.model.mask_head is not None and batch.masks is None:
            raise ValueError("The model predicts masks, but the batch has none.")
        features, predictions = self._first_stage(batch, training=True)
        step = self.model.next_draw()
        losses = self._rpn_losses(batch, predictions, step)
        proposals = self.propose_in_training(predictions, self.anchors, self._regions(batch))
        rois = self.sample_rois(
            *proposals, batch.boxes, batch.classes, batch.is_crowd, batch.records, step
        )
        losses |= self._box_losses(batch, features, rois)
        if self.model.mask_head is not None:
            losses["loss_mask"] = self._mask_loss(batch, features, rois)
        return {**losses, "loss": sum(losses.values())}

    def predict(self, batch: Batch) -> Detections:
        """Returns the detections of each image, clipped to the image, with masks if there are."""
        features, predictions = self._first_stage(batch, training=False)
        rois, valid = self.propose(predictions, self.anchors, self._regions(batch))
        stages: list[BoxPredictions] = []
        for number in range(len(self.stages)):
            if number:
                rois = self._refine(batch, rois, stages[-1], self.stages[number - 1])
            stages.append(self.model.predict_boxes(features, rois, stage=number, training=False))
        detections = self.postprocess(
            log_scores([stage.class_logits for stage in stages]),
            stages[-1].box_deltas,
            rois,
            valid,
            image_regions(batch),
            box_weights=self.stages[-1].box_weights,
        )
        if self.model.mask_head is None:
            return detections
        boxes, classes = detections.boxes, detections.classes
        logits = self.model.predict_masks(features, boxes, classes, training=False)
        found = (classes > 0)[..., None, None]
        return detections._replace(masks=ops.where(found, ops.sigmoid(logits), 0.0))

    def _first_stage(
        self, batch: Batch, training: bool
    ) -> tuple[Mapping[int, Tensor], RawPredictions]:
        images = padded_images(batch, self.padding, mean=self.model.pixel_mean)
        features, predictions = self.model(images, training=training)
        check_anchor_count(predictions, self.anchors)
        return features, predictions

    def _regions(self, batch: Batch) -> Tensor:
        if self.clip_to == "image":
            return image_regions(batch)
        height, width = batch.images.shape[1:3]
        whole = ops.convert_to_tensor([[0.0, 0.0, height, width]], "float32")
        return ops.tile(whole, (ops.shape(batch.images)[0], 1))

    def _rpn_losses(
        self, batch: Batch, predictions: RawPredictions, step: Tensor
    ) -> dict[str, Tensor]:
        matches = self.match(self.anchors, batch.boxes, batch.classes, batch.is_crowd)
        ranks = random_ranks(batch.records, step, count=len(self.anchors), stream=0)
        draw = self.draw_anchors(matches.classes, ranks)
        num_drawn = ops.sum(ops.ones_like(draw.rows, dtype="float32"))
        loss_class, loss_box = self.rpn_losses(
            predictions, self.anchors, matches, draw, self.sum_over_replicas(num_drawn)
        )
        return {"loss_rpn_class": loss_class, "loss_rpn_box": loss_box}

    def _box_losses(
        self, batch: Batch, features: Mapping[int, Tensor], rois: SampledRois
    ) -> dict[str, Tensor]:
        loss_class, loss_box = 0.0, 0.0
        for number, stage in enumerate(self.stages):
            predictions = self.model.predict_boxes(
                features, rois.boxes, stage=number, training=True
            )
            normalizer = self._at_least_one(ops.sum(ops.cast(rois.classes >= 0, "float32")))
            costs = self.box_losses(predictions, rois, normalizer, box_weights=stage.box_weights)
            loss_class = loss_class + stage.loss_weight * costs[0]
            loss_box = loss_box + stage.loss_weight * costs[1]
            if number + 1 < len(self.stages):
                refined = self._refine(batch, rois.boxes, predictions, stage)
                rois = rematch_rois(
                    rois._replace(boxes=refined),
                    batch.boxes,
                    batch.classes,
                    batch.is_crowd,
                    iou_threshold=self.stages[number + 1].iou_threshold,
                )
        return {"loss_class": loss_class, "loss_box": loss_box}

    def _mask_loss(self, batch: Batch, features: Mapping[int, Tensor], rois: SampledRois) -> Tensor:
        def sums(part: SampledRois) -> tuple[Tensor, Tensor]:
            logits = self.model.predict_masks(features, part.boxes, part.classes, training=True)
            targets = mask_targets(batch.masks, part.boxes, part.instances, size=logits.shape[-1])
            # Instances without a mask in the data are all 0: they say nothing of the shape.
            counted = (part.classes > 0) & ops.any(targets > 0, axis=(2, 3))
            return mask_loss(logits, targets, counted), ops.sum(ops.cast(counted, "float32"))

        first, *others = self._mask_parts(rois)
        loss, count = sums(first)
        nothing = ops.zeros(()), ops.zeros(())
        for part in others:
            has_some = ops.any(part.classes > 0)
            part_loss, part_count = ops.cond(
                has_some, functools.partial(sums, part), lambda: nothing
            )
            loss, count = loss + part_loss, count + part_count
        return loss / self._at_least_one(count)

    def _mask_parts(self, rois: SampledRois) -> list[SampledRois]:
        """Cuts the slots of positives into parts, of which those without any cost nothing.

        Positives come first in each image, and are often far fewer than their slots. Norms see all
        of them at once.
        """
        assert self.model.mask_head is not None
        size = self.max_mask_rois
        if not self.model.mask_head.tower.has_norms:
            size = -(-size // _MASK_PARTS)
        return [
            SampledRois(
                *(values[:, start : min(start + size, self.max_mask_rois)] for values in rois)
            )
            for start in range(0, self.max_mask_rois, size)
        ]

    def _refine(
        self, batch: Batch, rois: Tensor, predictions: BoxPredictions, stage: BoxStage
    ) -> Tensor:
        height, width = batch.images.shape[1:3]
        return refine_rois(
            rois, predictions, box_weights=stage.box_weights, canvas_size=(height, width)
        )

    def _at_least_one(self, count: Tensor) -> Tensor:
        # Over all replicas.
        return ops.stop_gradient(ops.maximum(self.sum_over_replicas(count), 1.0))
