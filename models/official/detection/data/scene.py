"""What an augmentation of one picture is handed and hands back."""

from typing import NamedTuple

import tensorflow as tf

from detection.data.canvas import has_area
from detection.types import Tensor

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
