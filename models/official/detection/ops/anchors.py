"""Anchors: the reference boxes that predicted box deltas are relative to."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL

AnchorLayout = Literal["centered", "corner", "torchvision"]


def anchors_for_canvas(
    *,
    canvas_size: tuple[int, int],
    min_level: int,
    max_level: int,
    num_scales: int,
    aspect_ratios: Sequence[float],
    anchor_size: float,
    layout: AnchorLayout = "centered",
) -> np.ndarray:
    """Returns the anchors [A, 4] of a canvas, float32, not clipped to it.

    A square anchor of level l has a side of `anchor_size * 2**l * 2**(s / num_scales)` pixels (Lin
    et al., arXiv 1708.02002, section 4).

    "centered": a location every 2**l pixels, the first at half of that. Order: level, row, column,
    scale, aspect ratio, as in the head's outputs.

    "corner": the same, but the first location is at 0, as in Detectron2.

    "torchvision": as its `AnchorGenerator` makes them. Sides of squares lose their fraction, halves
    of sides are rounded; the first location is at 0, the next after the canvas's side divided by
    the number of locations, without remainder (61 pixels on level 6 of a canvas of 800). Order:
    level, row, column, aspect ratio, scale.

    Args:
        canvas_size: height and width, multiples of 2**min(max_level, 5).
        min_level: finest level.
        max_level: coarsest level.
        num_scales: anchor sizes per octave.
        aspect_ratios: width over height.
        anchor_size: side of the first square anchor, in strides of its level.
        layout: where anchors lie and in which order.

    Raises:
        ValueError: the backbone's coarsest stride does not divide a side of the canvas.
    """
    stride = 2 ** min(max_level, COARSEST_BACKBONE_LEVEL)
    if any(side <= 0 or side % stride for side in canvas_size):
        raise ValueError(
            f"The canvas is {canvas_size[0]}x{canvas_size[1]} pixels; both sides must be multiples "
            f"of {stride}, the stride of the backbone's last level. Change the canvas or "
            f"max_level={max_level}."
        )
    levels = []
    for level in range(min_level, max_level + 1):
        sides = anchor_size * 2**level * 2.0 ** (np.arange(num_scales) / num_scales)
        halves = (_rounded_halves if layout == "torchvision" else _halves)(sides, aspect_ratios)
        centers = _centers(canvas_size, level, layout)
        boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
        levels.append(boxes.reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def _centers(canvas_size: tuple[int, int], level: int, layout: AnchorLayout) -> np.ndarray:
    # [locations, 1, 2], y and x
    cells = _cells(canvas_size, level)
    first = 0.5 if layout == "centered" else 0.0
    steps = (2**level, 2**level)
    if layout == "torchvision":
        steps = [side // count for side, count in zip(canvas_size, cells, strict=True)]
    rows, columns = (
        (np.arange(count) + first) * step for count, step in zip(cells, steps, strict=True)
    )
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 1, 2)


def _halves(sides: np.ndarray, aspect_ratios: Sequence[float]) -> np.ndarray:
    # [scales * ratios, 2], y and x
    roots = np.sqrt(np.asarray(aspect_ratios, np.float64))
    return np.stack([sides[:, None] / roots, sides[:, None] * roots], axis=-1).reshape(-1, 2) / 2


def _rounded_halves(sides: np.ndarray, aspect_ratios: Sequence[float]) -> np.ndarray:
    # [ratios * scales, 2], y and x. Its ratios are height over width; in float32, as there.
    roots = np.sqrt(1.0 / np.asarray(aspect_ratios, np.float32))[:, None]
    squares = np.floor(sides).astype(np.float32)
    return np.round(np.stack([roots * squares, 1.0 / roots * squares], axis=-1).reshape(-1, 2) / 2)


def _cells(canvas_size: tuple[int, int], level: int) -> tuple[int, int]:
    height, width = canvas_size
    return -(-height >> level), -(-width >> level)


def locations_per_level(
    *, canvas_size: tuple[int, int], min_level: int, max_level: int
) -> tuple[int, ...]:
    """Returns the number of anchor locations on each level.

    Args:
        canvas_size: height and width, as for `anchors_for_canvas`.
        min_level: finest level.
        max_level: coarsest level.
    """
    cells = (_cells(canvas_size, level) for level in range(min_level, max_level + 1))
    return tuple(rows * columns for rows, columns in cells)
