"""A training image with its objects, on its way from the record to the batch."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import has_area
from tpudet.detection.data.masks import pack_masks, unpack_masks
from tpudet.trainkit.types import Tensor

COCO_LONGER_SIDE = 640.0  # pixels; the distances of published augmentations were chosen for it


class AnnotatedImage(NamedTuple):
    """The part of a sample that augmentations of a single image see; h and w before padding."""

    image: Tensor  # [h, w, 3] uint8
    boxes: Tensor  # [n, 4] float32, pixels of the image, within it; 0 0 0 0 of a removed object
    is_crowd: Tensor  # [n] bool
    masks: Tensor | None  # [n, h, w] uint8, 0 or 1; None where the pipeline reads none


def is_object(annotated: AnnotatedImage) -> Tensor:
    """Returns a mask of the instances whose boxes an operation may pick, [n] bool.

    Removed instances are not among them, nor are crowds: a region to ignore is no object to move.
    """
    return has_area(annotated.boxes) & ~annotated.is_crowd


def pixel_unit(image: Tensor) -> Tensor:
    """Returns the length that stands for a pixel of a COCO image, [] float32: longer side / 640."""
    return tf.cast(tf.reduce_max(tf.shape(image)[:2]), tf.float32) / COCO_LONGER_SIDE


class Sample(NamedTuple):
    """An image cropped and scaled for the canvas but not padded yet, with its `n` instances.

    An instance removed by an augmentation keeps its row, with the box 0 0 0 0, until the batch is
    made.
    """

    image: Tensor  # [h, w, 3] uint8, h <= H and w <= W
    boxes: Tensor  # [n, 4] float32, pixels of `image`
    classes: Tensor  # [n] int32, from 1
    is_crowd: Tensor  # [n] bool
    masks: Tensor | None  # [n, h, w] uint8, 0 or 1; None where the pipeline reads none
    seed: Tensor  # [2] int64, of the record in its epoch
    record: Tensor  # [] int64, the record's number; of a mixed image, that of the first
    original_size: Tensor  # [2] float32; this and the next two as in `Batch`, of that record
    scale: Tensor  # [2] float32
    offset: Tensor  # [2] float32, before any augmentation


def apply_to_image(
    sample: Sample, seed: Tensor, *, change: Callable[[AnnotatedImage, Tensor], AnnotatedImage]
) -> Sample:
    """Applies a change of single images to a sample.

    Args:
        sample: its classes stay.
        seed: [2], for `change`.
        change: (image, seed) -> image of the same size, with the same number of instances.
    """
    annotated = AnnotatedImage(sample.image, sample.boxes, sample.is_crowd, sample.masks)
    image, boxes, _, masks = change(annotated, seed)
    return sample._replace(image=image, boxes=boxes, masks=masks)


def pack_sample(sample: Sample) -> dict[str, Tensor]:
    """Returns all of a sample but its image, masks as bits, for `augmented_stream`."""
    packed = {name: value for name, value in sample._asdict().items() if value is not None}
    del packed["image"]
    if sample.masks is not None:
        packed["masks"] = pack_masks(sample.masks)
    return {**packed, "num_instances": tf.shape(sample.boxes)[0]}


def unpack_sample(image: Tensor, packed: dict[str, Tensor]) -> Sample:
    """Inverse of `pack_sample`, whose tensors may have been padded at their ends."""
    values = dict(packed)
    count = values.pop("num_instances")
    for name in ("boxes", "classes", "is_crowd"):
        values[name] = values[name][:count]
    if "masks" in values:
        height, width = tf.unstack(tf.shape(image)[:2])
        values["masks"] = unpack_masks(values["masks"][:count, :height], width)
    return Sample(image=image, **{"masks": None, **values})
