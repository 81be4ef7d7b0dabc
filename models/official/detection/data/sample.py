"""A training picture on its way to the batch, and the two kinds of augmentation that change it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import has_area
from tpudet.trainkit.types import Tensor

COCO_LONGER_SIDE = 640.0  # pixels; the distances of published augmentations were chosen for it


class Scene(NamedTuple):
    """A decoded picture with its objects; h and w are its own sides, before it is padded."""

    picture: Tensor  # [h, w, 3] uint8
    boxes: Tensor  # [n, 4] float32, pixels of the picture, within it; 0 0 0 0 of what was removed
    is_crowd: Tensor  # [n] bool
    masks: Tensor | None  # [n, h, w] uint8, 0 or 1; None where the pipeline reads none


def is_object(scene: Scene) -> Tensor:
    """Returns of which instances an operation may choose the box, [n] bool.

    Not those that were removed, nor crowds: a region to ignore is no object to move.
    """
    return has_area(scene.boxes) & ~scene.is_crowd


def pixel_unit(picture: Tensor) -> Tensor:
    """Returns what stands for a pixel of a COCO picture, [] float32: longer side / 640."""
    return tf.cast(tf.reduce_max(tf.shape(picture)[:2]), tf.float32) / COCO_LONGER_SIDE


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
