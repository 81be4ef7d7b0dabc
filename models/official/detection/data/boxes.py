"""Boxes of training images in tf.data: onto the canvas, mirrored, clipped."""

import tensorflow as tf

from tpudet.trainkit.types import Tensor

# In canvas pixels, either side, after clipping. Less than a pixel of an object shows nothing.
MIN_BOX_SIDE = 1.0


def boxes_to_canvas(
    boxes: Tensor, scale: Tensor, offset: Tensor, canvas_height: int, canvas_width: int
) -> Tensor:
    """Moves boxes onto the canvas and clips them; inverse of `(box + offset) / scale`.

    Args:
        boxes: [n, 4] float32, pixels of the original picture.
        scale: [2], see `PlacedImage`.
        offset: [2], see `PlacedImage`.
        canvas_height: pixels.
        canvas_width: pixels.

    Returns:
        Boxes [n, 4] in canvas pixels. Where too little is left (`has_area`) all four numbers are
        0: a line on the border would become a box again when the picture is turned.
    """
    corners = tf.reshape(boxes, [-1, 2, 2]) * scale - offset
    corners = tf.clip_by_value(corners, 0.0, tf.constant([canvas_height, canvas_width], tf.float32))
    clipped = tf.reshape(corners, [-1, 4])
    return tf.where(has_area(clipped)[:, None], clipped, 0.0)


def has_area(boxes: Tensor) -> Tensor:
    """Returns of which boxes [n, 4] both sides are at least `MIN_BOX_SIDE`, [n] bool."""
    return tf.reduce_all(boxes[:, 2:] - boxes[:, :2] >= MIN_BOX_SIDE, axis=-1)


def flip_boxes(boxes: Tensor, width: Tensor) -> Tensor:
    """Mirrors boxes [n, 4] in a picture of `width` pixels. Its own inverse."""
    y1, x1, y2, x2 = tf.unstack(boxes, axis=-1)
    return tf.stack([y1, width - x2, y2, width - x1], axis=-1)


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
