"""A training picture on its way to the batch, and the two kinds of augmentation that change it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.data.canvas import has_area, pad_picture
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
    # [h, w] int32: 1 + the row of the instance whose mask has the pixel, 0 where none has. One map
    # in place of n masks, or a block of pictures would take half a gigabyte. None: no masks.
    instances: Tensor | None
    seed: Tensor  # [2] int64, of the record in its epoch
    record: Tensor  # [] int64, the record's number; the first one's of a mixed picture
    original_size: Tensor  # [2] float32; this and the next two as in `Batch`, of that record
    scale: Tensor  # [2] float32
    offset: Tensor  # [2] float32, before any augmentation


class PictureAugmentation(NamedTuple):
    """Changes one picture by itself."""

    # (picture [h, w, 3] uint8, boxes [n, 4], masks [n, h, w] bool or None, seed [2]) -> the first
    # three. The size of the picture and the number of rows stay.
    apply: Callable[[Tensor, Tensor, Tensor | None, Tensor], Scene]


class MixingAugmentation(NamedTuple):
    """Makes one picture of several."""

    # ([the picture, its partners], seed [2]) -> the mixed picture, no larger than the canvas.
    apply: Callable[[Sequence[Sample], Tensor], Sample]
    num_partners: int
    probability: float  # 0..1, of being applied to a picture
    needs_masks: bool = False


Augmentation = PictureAugmentation | MixingAugmentation


def apply_to_picture(augmentation: PictureAugmentation, sample: Sample, seed: Tensor) -> Sample:
    """Applies an augmentation of single pictures, [2] its seed; masks exist only meanwhile."""
    if sample.instances is None:
        image, boxes, _ = augmentation.apply(sample.image, sample.boxes, None, seed)
        return sample._replace(image=image, boxes=boxes)
    rows = tf.range(1, tf.shape(sample.boxes)[0] + 1)[:, None, None]
    masks = sample.instances[None] == rows
    image, boxes, masks = augmentation.apply(sample.image, sample.boxes, masks, seed)
    assert masks is not None
    # The maximum over no rows at all is the least integer.
    instances = tf.maximum(tf.reduce_max(tf.where(tf.cast(masks, tf.bool), rows, 0), axis=0), 0)
    return sample._replace(image=image, boxes=boxes, instances=instances)


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


def pad_instances(sample: Sample, height: Tensor, width: Tensor) -> Tensor | None:
    """Returns the map of instances padded to [height, width], None where there is none."""
    if sample.instances is None:
        return None
    return pad_picture(tf.expand_dims(sample.instances, -1), height, width)[..., 0]


def joined_instances(
    first: Tensor | None,
    second: Tensor | None,
    *,
    first_count: Tensor,
    second_on_top: bool = False,
) -> Tensor | None:
    """Joins two maps of instances of one shape; the rows of the second come after the first's.

    Args:
        first: int32, as `Sample.instances`.
        second: int32, of the same shape.
        first_count: [] int32, rows of the first.
        second_on_top: whose the pixels are that both maps claim.
    """
    if first is None or second is None:
        return None
    shifted = tf.where(second > 0, second + first_count, 0)
    lower, upper = (first, shifted) if second_on_top else (shifted, first)
    return tf.where(upper > 0, upper, lower)
