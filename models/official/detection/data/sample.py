"""A training picture on its way to the batch, and the two kinds of augmentation that change it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.data.canvas import has_area
from detection.data.scene import Scene
from detection.types import Tensor


class Sample(NamedTuple):
    """A picture cropped and scaled for the canvas but not padded yet, with its `n` instances.

    What is removed, by the crop or an augmentation, stays as a row whose box is 0 0 0 0 until the
    batch is made.
    """

    image: Tensor  # [h, w, 3] uint8, h <= H and w <= W
    boxes: Tensor  # [n, 4] float32, pixels of `image`
    classes: Tensor  # [n] int32, from 1
    is_crowd: Tensor  # [n] bool
    masks: Tensor | None  # [n, h, w] uint8, 0 or 1; None where no augmentation needs masks
    seed: Tensor  # [2] int64, of the record in its epoch
    record: Tensor  # [] int64, the record's number; the first one's of a mixed picture
    original_size: Tensor  # [2] float32; this and the next two as in `Batch`, of that record
    scale: Tensor  # [2] float32
    offset: Tensor  # [2] float32, before any augmentation


class PictureAugmentation(NamedTuple):
    """Changes one picture by itself."""

    # (scene, seed [2]) -> scene. The size of the picture and the number of rows stay.
    apply: Callable[[Scene, Tensor], Scene]


class MixingAugmentation(NamedTuple):
    """Makes one picture of several."""

    # ([the picture, its partners], seed [2]) -> the mixed picture, no larger than the canvas.
    apply: Callable[[Sequence[Sample], Tensor], Sample]
    num_partners: int
    probability: float  # 0..1, of being applied to a picture
    needs_masks: bool = False


Augmentation = PictureAugmentation | MixingAugmentation


def apply_to_picture(augmentation: PictureAugmentation, sample: Sample, seed: Tensor) -> Sample:
    """Applies an augmentation of single pictures, [2] its seed."""
    scene = Scene(sample.image, sample.boxes, sample.is_crowd, sample.masks)
    image, boxes, _, masks = augmentation.apply(scene, seed)
    return sample._replace(image=image, boxes=boxes, masks=masks)


def remaining_boxes(before: Tensor, after: Tensor, min_share: float) -> Tensor:
    """Returns the boxes `after` a crop; those of which too little is left get no area.

    Args:
        before: [n, 4], as large as the instances were.
        after: [n, 4], clipped.
        min_share: 0..1, share of the area of `before`.
    """
    shares = box_areas(after) / tf.maximum(box_areas(before), 1e-9)
    return tf.where((shares >= min_share)[:, None], after, 0.0)


def box_areas(boxes: Tensor) -> Tensor:
    """Returns the areas, [n], of boxes [n, 4]; 0 of those that have none (`has_area`)."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return tf.where(has_area(boxes), sides[:, 0] * sides[:, 1], 0.0)
