"""Box arithmetic in NumPy, for code that runs outside the model.

Boxes are two opposite corners, the smaller coordinates first: `y1 x1 y2 x2` or `x1 y1 x2 y2`.
"""

from typing import Any

import numpy as np

# Of a fraction of the image: annotators' and detectors' boxes overhang it by less, so that a set
# most of whose boxes end beyond is in pixels.
FAR_OUTSIDE = 1.5


def box_areas(boxes: np.ndarray) -> np.ndarray:
    """Returns the areas [n] of boxes [n, 4], in the square of their unit."""
    return (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)


def iou_matrix(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the intersection over union [m, n] of boxes [m, 4] and [n, 4].

    0 where the union has no area or a coordinate is not a number.
    """
    starts = np.maximum(first[:, None, :2], second[None, :, :2])
    ends = np.minimum(first[:, None, 2:], second[None, :, 2:])
    intersection = np.clip(ends - starts, 0, None).prod(axis=2)
    union = box_areas(first)[:, None] + box_areas(second)[None, :] - intersection
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=union > 0)


def boxes_to_xywh(boxes: np.ndarray) -> np.ndarray:
    """Returns boxes [n, 4] y1 x1 y2 x2 as [n, 4] float64 x, y, width, height."""
    y1, x1, y2, x2 = boxes.astype(np.float64).T
    return np.stack([x1, y1, x2 - x1, y2 - y1], axis=1)


def turn_boxes_upright(boxes_normalized: np.ndarray, orientation: int) -> np.ndarray:
    """Moves boxes from a stored image to the upright one.

    As `trainkit.images.standardize.turn_upright` moves pixels.

    Args:
        boxes_normalized: [n, 4] y1 x1 y2 x2, fractions of the stored image.
        orientation: by EXIF, 1 to 8.

    Returns:
        [n, 4] y1 x1 y2 x2, fractions of the upright image.
    """
    y1, x1, y2, x2 = boxes_normalized.T
    if orientation >= 5:
        y1, x1, y2, x2 = x1, y1, x2, y2
    if orientation in (2, 3, 6, 7):
        x1, x2 = 1 - x2, 1 - x1
    if orientation in (3, 4, 7, 8):
        y1, y2 = 1 - y2, 1 - y1
    return np.stack([y1, x1, y2, x2], axis=1)


def boxes_to_original(boxes: Any, *, scales: Any, offsets: Any, sizes: Any, xp: Any = np) -> Any:
    """Moves boxes from the canvas back to their original image: (box + offset) / scale, clipped.

    Args:
        boxes: [B, K, 4] y1 x1 y2 x2, canvas pixels.
        scales: [B, 2] canvas pixels per original pixel, y and x.
        offsets: [B, 2] canvas pixels, y and x.
        sizes: [B, 2] height and width of the originals.
        xp: the module of the arrays: numpy, or keras.ops while a model is traced.

    Returns:
        [B, K, 4] pixels of the original images.
    """
    scales, offsets, sizes = (
        xp.concatenate([pair, pair], axis=-1)[:, None, :] for pair in (scales, offsets, sizes)
    )
    return xp.minimum(xp.maximum((boxes + offsets) / scales, 0.0), sizes)
