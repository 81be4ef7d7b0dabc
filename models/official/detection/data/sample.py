"""A training image with its objects, on its way from the record to the batch."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tpudet.detection.data.boxes import has_area
from tpudet.detection.data.masks import pack_masks, unpack_masks
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.types import Tensor


class AnnotatedImage(NamedTuple):
    """The part of a sample that augmentations of a single image see; h and w before padding."""

    image: Tensor  # [h, w, 3] uint8
    boxes: Tensor  # [n, 4] float32, pixels of the image, within it; 0 0 0 0 of a removed object
    is_crowd: Tensor  # [n] bool
    masks: Tensor | None  # [n, h, w] uint8, 0 or 1; None where the pipeline reads none


def is_object(annotated: AnnotatedImage) -> Tensor:
    """Returns a mask of the instances whose boxes an operation may pick, [n] bool.

    Removed instances are not among them, nor are crowds: a region to ignore is not an
    object to move.
    """
    return has_area(annotated.boxes) & ~annotated.is_crowd


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


def select_instances(kept: Tensor, is_crowd: Tensor, max_instances: int, seed: Tensor) -> Tensor:
    """Returns the rows of at most `max_instances` kept instances, [m].

    Objects come before crowds, each in their order. If there are too many, those left out are
    drawn at random: the last ones of a mosaic are all those of its lower right image.

    Args:
        kept: [n] bool, whether anything is left of the box.
        is_crowd: [n] bool.
        max_instances: N.
        seed: [2], which determines the choice.
    """
    draws = tf.random.stateless_uniform(tf.shape(kept), seed, alg="philox")
    kinds = tf.where(kept & ~is_crowd, 0.0, tf.where(kept, 1.0, 2.0))
    rank = tf.argsort(tf.argsort(kinds + draws, stable=True))
    chosen = kept & (rank < max_instances)
    objects, crowds = (tf.where(chosen & kind)[:, 0] for kind in (~is_crowd, is_crowd))
    return tf.concat([objects, crowds], axis=0)


def describe_left_out(manifest: Mapping[str, Any] | None, max_instances: int) -> str:
    """Says how many boxes of a split `max_instances` has no room for; empty if there are none.

    Args:
        manifest: of the split; its `images_per_boxes` is used. Records of other programs have none.
        max_instances: N, see `select_instances`.
    """
    images_per_boxes = (manifest or {}).get("images_per_boxes", {})
    beyond = {int(n): k for n, k in images_per_boxes.items() if int(n) > max_instances}
    if not beyond:
        return ""
    boxes = sum(int(n) * k for n, k in images_per_boxes.items())
    left_out = sum((n - max_instances) * k for n, k in beyond.items())
    return (
        f"data.max_instances {max_instances}: {sum(beyond.values()):,} images have more boxes, up "
        f"to {max(beyond)}; {left_out:,} of all {boxes:,} boxes are left out, redrawn every "
        "epoch"
    )


def require_boxes(manifest: Mapping[str, Any] | None, split: str) -> None:
    """Refuses to train on a split without boxes.

    Args:
        manifest: of the split; records of other programs have none.
        split: its name.

    Raises:
        UserError: its manifest counts none.
    """
    if manifest is not None and not manifest["boxes"]:
        raise UserError(
            f"split {split}: no image of the {manifest['images']} has a box, so nothing can be "
            "learned from them. Convert annotations with boxes, or name another data.train_split."
        )


def describe_lacks(manifest: Mapping[str, Any] | None) -> list[str]:
    """Says which classes a split has nothing of to learn from.

    Args:
        manifest: of the split; records of other programs have none.
    """
    if manifest is None:
        return []
    boxes, crowds = manifest["boxes_per_class"], manifest.get("crowds_per_class", {})
    empty = [name for name, count in boxes.items() if not count]
    crowded = [name for name, count in boxes.items() if count and count == crowds.get(name)]
    lacks = []
    if empty:
        lacks.append(f"{len(empty)} of {len(boxes)} classes have no box: {listing(empty)}")
    if crowded:
        lacks.append(
            f"{len(crowded)} of {len(boxes)} classes have only crowd regions, from which nothing "
            f"is learned: {listing(crowded)}"
        )
    return lacks


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
