"""Anchors: the reference boxes that predicted box deltas are relative to."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tpudet.detection.types import RawPredictions
from tpudet.trainkit.backbones.config import COARSEST_BACKBONE_LEVEL

AnchorLayout = Literal["centered", "corner", "torchvision"]


def anchors_for_canvas(
    *,
    canvas_size: tuple[int, int],
    strides: Sequence[int],
    num_scales: int,
    aspect_ratios: Sequence[float],
    anchor_size: float,
    sides: Sequence[float],
    layout: AnchorLayout,
) -> np.ndarray:
    """Returns the anchors [A, 4] of a canvas, float32, not clipped to it.

    A square anchor of a level has a side of `anchor_size * stride * 2**(s / num_scales)` pixels
    (Lin et al., arXiv 1708.02002, section 4).

    "centered": a location every stride, the first at half of that. Order: level, row, column,
    scale, aspect ratio, as in the head's outputs.

    "corner": the same, but the first location is at 0, as in Detectron2.

    "torchvision": as its `AnchorGenerator` makes them. Sides of squares lose their fraction, halves
    of sides are rounded; the first location is at 0, the next after the canvas's side divided by
    the number of locations, without remainder (61 pixels for stride 64 on a canvas of 800). Order:
    level, row, column, aspect ratio, scale.

    Args:
        canvas_size: height and width, multiples of every stride up to 32.
        strides: of the levels, in pixels, finest first.
        num_scales: anchor sizes per octave.
        aspect_ratios: width over height.
        anchor_size: side of the first square anchor, in strides of its level.
        sides: of the square anchors of every level, in pixels; if there are any, they count and not
            `num_scales` and `anchor_size`.
        layout: where anchors lie and in which order.

    Raises:
        ValueError: the backbone's coarsest stride does not divide a side of the canvas.
    """
    coarsest = min(strides[-1], 2**COARSEST_BACKBONE_LEVEL)
    if any(side <= 0 or side % coarsest for side in canvas_size):
        raise ValueError(
            f"The canvas is {canvas_size[0]}x{canvas_size[1]} pixels; both sides must be multiples "
            f"of {coarsest}, the stride of the backbone's last level. Change the canvas or "
            "max_level."
        )
    levels = []
    octave = anchor_size * 2.0 ** (np.arange(num_scales) / num_scales)
    for stride in strides:
        squares = np.asarray(sides, np.float64) if sides else octave * stride
        halves = (_rounded_halves if layout == "torchvision" else _halves)(squares, aspect_ratios)
        centers = _centers(canvas_size, stride, layout)
        boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
        levels.append(boxes.reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def check_anchor_count(predictions: RawPredictions, anchors: np.ndarray) -> None:
    """Compares the number of anchors that a network predicts for with the anchors [A, 4].

    Raises:
        ValueError: they differ.
    """
    found, expected = predictions.class_logits.shape[1], len(anchors)
    if found != expected:
        raise ValueError(
            f"The model predicts for {found} anchors, but the task has {expected}: canvas size, "
            "levels, scales and aspect ratios must be the same for both."
        )


def _centers(canvas_size: tuple[int, int], stride: int, layout: AnchorLayout) -> np.ndarray:
    # [locations, 1, 2], y and x
    cells = _cells(canvas_size, stride)
    first = 0.5 if layout == "centered" else 0.0
    steps = (stride, stride)
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


def _cells(canvas_size: tuple[int, int], stride: int) -> tuple[int, int]:
    height, width = canvas_size
    return -(-height // stride), -(-width // stride)


def locations_per_level(*, canvas_size: tuple[int, int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the number of anchor locations on each level.

    Args:
        canvas_size: height and width, as for `anchors_for_canvas`.
        strides: as for `anchors_for_canvas`.
    """
    cells = (_cells(canvas_size, stride) for stride in strides)
    return tuple(rows * columns for rows, columns in cells)
