"""What an augmentation of one picture is handed and hands back."""

from typing import NamedTuple

import tensorflow as tf

from detection.types import Tensor

COCO_LONGER_SIDE = 640.0  # pixels; the distances of published augmentations were chosen for it


class Scene(NamedTuple):
    """A decoded picture with its objects; h and w are its own sides, before it is padded."""

    picture: Tensor  # [h, w, 3] uint8
    boxes: Tensor  # [n, 4] float32, pixels of the picture, within it
    masks: Tensor | None  # [n, h, w] uint8 or bool; None where the pipeline reads none


def pixel_unit(picture: Tensor) -> Tensor:
    """Returns what stands for a pixel of a COCO picture, [] float32: longer side / 640."""
    return tf.cast(tf.reduce_max(tf.shape(picture)[:2]), tf.float32) / COCO_LONGER_SIDE
