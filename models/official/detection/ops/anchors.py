"""Anchors: the reference boxes that predicted box deltas are relative to."""

from collections.abc import Sequence

import numpy as np


def anchors_for_canvas(
    *,
    canvas_size: tuple[int, int],
    min_level: int,
    max_level: int,
    num_scales: int,
    aspect_ratios: Sequence[float],
    anchor_size: float,
) -> np.ndarray:
    """Returns the anchors [A, 4] of a canvas, float32, not clipped to it.

    Order: level, row, column, scale, aspect ratio, as in the head's outputs. Level l has a
    location every 2**l pixels, the first at half of that, with anchors of area
    `(anchor_size * 2**l * 2**(s / num_scales))**2` (Lin et al., arXiv 1708.02002, section 4).

    Args:
        canvas_size: Height and width, multiples of 2**max_level.
        min_level: Finest level.
        max_level: Coarsest level.
        num_scales: Anchor sizes per octave.
        aspect_ratios: Width over height.
        anchor_size: Side of the first square anchor, in strides of its level.

    Raises:
        ValueError: A side of the canvas is not a multiple of 2**max_level.
    """
    stride = 2**max_level
    if any(side <= 0 or side % stride for side in canvas_size):
        raise ValueError(
            f"The canvas is {canvas_size[0]}x{canvas_size[1]} pixels; both sides must be multiples "
            f"of {stride} = 2**max_level. Change the canvas or max_level={max_level}."
        )
    levels = []
    for level in range(min_level, max_level + 1):
        stride = 2**level
        octaves = 2.0 ** (np.arange(num_scales) / num_scales)
        roots = np.sqrt(np.asarray(aspect_ratios, np.float64))
        sides = anchor_size * stride * octaves[:, None]
        halves = np.stack([sides / roots, sides * roots], axis=-1).reshape(-1, 2) / 2  # y, x
        rows, columns = ((np.arange(side // stride) + 0.5) * stride for side in canvas_size)
        centers = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 1, 2)
        boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
        levels.append(boxes.reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def locations_per_level(
    *, canvas_size: tuple[int, int], min_level: int, max_level: int
) -> tuple[int, ...]:
    """Returns the number of anchor locations on each level.

    Args:
        canvas_size: Height and width, multiples of 2**max_level.
        min_level: Finest level.
        max_level: Coarsest level.
    """
    height, width = canvas_size
    return tuple((height >> level) * (width >> level) for level in range(min_level, max_level + 1))
