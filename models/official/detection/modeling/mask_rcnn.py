"""The network of Mask R-CNN (He et al., arXiv 1703.06870) and Faster R-CNN.

Without a mask head it is Faster R-CNN on a feature pyramid (Lin et al., arXiv 1612.03144, section
4); with several box heads in sequence, Cascade R-CNN (Cai and Vasconcelos, arXiv 1712.00726).
"""

from collections.abc import Mapping, Sequence

import keras

from tpudet.detection.modeling.roi_heads import BoxPredictions
from tpudet.detection.ops.roi_align import roi_align
from tpudet.detection.types import RawPredictions
from tpudet.trainkit.backbones.pixels import normalize_pixels
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


class MaskRCNN(keras.Model):
    """Predicts proposals from images, and classes, boxes and masks from regions.

    All variables are created in the constructor. Pixels are normalised in the model, as in
    `RetinaNet`.

    Args:
        backbone: layer [B, H, W, 3] -> {level: features}, with `channels` by level. Without levels
            coarser than the neck needs: they would have no gradient.
        neck: layer {level: features} -> {level: features} of `num_filters` channels.
        rpn: layer {level: features} -> RawPredictions with one class.
        box_heads: layers [B, K, S, S, channels] -> BoxPredictions: one, or those of a cascade.
        mask_head: layer of features [B, K, S, S, channels] and classes [B, K] -> mask logits; None
            for a detector without masks.
        roi_levels: levels that regions are pooled from.
        box_size: S of the box heads.
        mask_size: S of the mask head; masks have twice that.
        sampling_ratio: as of `roi_align`.
        aligned: as of `roi_align`.
        pixel_mean: mean of each colour, for pixels in 0..1.
        pixel_std: standard deviation of each colour.
    """

    def __init__(
        self,
        *,
        backbone: keras.layers.Layer,
        neck: keras.layers.Layer,
        rpn: keras.layers.Layer,
        box_heads: Sequence[keras.layers.Layer],
        mask_head: keras.layers.Layer | None,
        roi_levels: range,
        box_size: int,
        mask_size: int,
        sampling_ratio: int,
        aligned: bool,
        pixel_mean: Sequence[float],
        pixel_std: Sequence[float],
    ):
        super().__init__(name="mask_rcnn")
        self.backbone = backbone
        self.neck = neck
        self.rpn = rpn
        self.box_heads = list(box_heads)
        self.mask_head = mask_head
        self.roi_levels = roi_levels
        self.box_size = box_size
        self.mask_size = mask_size
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned
        self.pixel_mean = tuple(pixel_mean)
        self.pixel_std = tuple(pixel_std)
        # Built here, outside the model's own name scope: paths begin with the part's name.
        backbone.build((None, None, None, 3))
        neck.build({level: (None, None, None, n) for level, n in backbone.channels.items()})
        rpn.build((None, None, None, neck.num_filters))
        for head in box_heads:
            head.build((None, None, box_size, box_size, neck.num_filters))
        if mask_head is not None:
            mask_head.build((None, None, mask_size, mask_size, neck.num_filters))
        # The draws of anchors and regions follow it, so that a restored run continues.
        self.draws = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            aggregation="only_first_replica",
            name="draws",
        )
        self.built = True

    def call(
        self, images: Tensor, training: bool = False
    ) -> tuple[dict[int, Tensor], RawPredictions]:
        """Returns the pyramid's features and the predictions of the region proposal network.

        Args:
            images: [B, H, W, 3] uint8, sides multiples of `PyramidConfig.stride`.
            training: whether norms see the batch.
        """
        pixels = normalize_pixels(
            images,
            pixel_mean=self.pixel_mean,
            pixel_std=self.pixel_std,
            dtype=self.compute_dtype,
        )
        features = self.neck(self.backbone(pixels, training=training), training=training)
        return features, self.rpn(features)

    def predict_boxes(
        self, features: Mapping[int, Tensor], rois: Tensor, *, stage: int, training: bool
    ) -> BoxPredictions:
        """Returns the predictions of a stage's box head for regions [B, K, 4]."""
        pooled = self._pool(features, rois, self.box_size)
        return self.box_heads[stage](pooled, training=training)

    def predict_masks(
        self, features: Mapping[int, Tensor], rois: Tensor, classes: Tensor, *, training: bool
    ) -> Tensor:
        """Returns the mask logits [B, K, M, M] of regions [B, K, 4] with classes [B, K].

        Raises:
            ValueError: the model has no mask head.
        """
        if self.mask_head is None:
            raise ValueError("The model has no mask head.")
        pooled = self._pool(features, rois, self.mask_size)
        return self.mask_head(pooled, classes, training=training)

    def next_draw(self) -> Tensor:
        """Returns the number of earlier calls, [] int32, and counts this one."""
        number = ops.convert_to_tensor(self.draws) + 0
        self.draws.assign(self.draws + 1)
        return number

    def _pool(self, features: Mapping[int, Tensor], rois: Tensor, size: int) -> Tensor:
        return roi_align(
            {level: features[level] for level in self.roi_levels},
            rois,
            output_size=size,
            sampling_ratio=self.sampling_ratio,
            aligned=self.aligned,
        )
