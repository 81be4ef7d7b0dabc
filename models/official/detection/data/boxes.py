"""Box geometry in tf.data: onto the canvas, mirrored, clipped.

`tf`, not `keras.ops`: these functions run in the input pipeline whatever backend trains.
"""

import tensorflow as tf

from tpudet.trainkit.types import Tensor

# Canvas pixels, of either side after clipping: nothing can be seen of a smaller object.
MIN_BOX_SIDE = 1.0


def boxes_to_canvas(
    boxes: Tensor,
    scale: Tensor,
    offset: Tensor,
    canvas_height: int | Tensor,
    canvas_width: int | Tensor,
) -> Tensor:
    """Moves boxes onto the canvas and clips them; inverse of `(box + offset) / scale`.

    Args:
        boxes: [n, 4] float32, pixels of the original image.
        scale: [2], see `PlacedImage`.
        offset: [2], see `PlacedImage`.
        canvas_height: pixels.
        canvas_width: pixels.

    Returns:
        [n, 4], canvas pixels. Where too little is left (`has_area`) all four numbers are 0: a line
        on the border would become a box again when the image is rotated.
    """
    corners = tf.reshape(boxes, [-1, 2, 2]) * scale - offset
    canvas = tf.cast(tf.stack([canvas_height, canvas_width]), tf.float32)
    corners = tf.clip_by_value(corners, 0.0, canvas)
    clipped = tf.reshape(corners, [-1, 4])
    return tf.where(has_area(clipped)[:, None], clipped, 0.0)


def has_area(boxes: Tensor) -> Tensor:
    """Returns whether both sides of boxes [n, 4] are at least `MIN_BOX_SIDE`, [n] bool."""
    return tf.reduce_all(boxes[:, 2:] - boxes[:, :2] >= MIN_BOX_SIDE, axis=-1)


def flip_boxes(boxes: Tensor, width: Tensor) -> Tensor:
    """Mirrors boxes [n, 4] in an image of `width` pixels. Its own inverse."""
    y1, x1, y2, x2 = tf.unstack(boxes, axis=-1)
    return tf.stack([y1, width - x2, y2, width - x1], axis=-1)


def remaining_boxes(before: Tensor, after: Tensor, min_share: float | Tensor) -> Tensor:
    """Returns the boxes `after` a crop, 0 0 0 0 where too little of the area is left.

    Args:
        before: [n, 4], before the crop.
        after: [n, 4], clipped.
        min_share: 0..1, least share of the area of `before`; of all or of each, [n]. With 0 any
            area is enough.
    """
    shares = visible_areas(after) / tf.maximum(visible_areas(before), 1e-9)
    return tf.where(((shares >= min_share) & has_area(after))[:, None], after, 0.0)


def visible_areas(boxes: Tensor) -> Tensor:
    """Returns the areas, [n], of boxes [n, 4]; 0 where `has_area` is false."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return tf.where(has_area(boxes), sides[:, 0] * sides[:, 1], 0.0)
