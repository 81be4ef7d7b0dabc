"""RoIAlign (He et al., arXiv 1703.06870, section 3) over the levels of a feature pyramid."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.ops.boxes import box_areas
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

# A box of this side, that of ImageNet's crops, is pooled from this level (Lin et al., arXiv
# 1612.03144, equation 1).
_CANONICAL_SIDE = 224.0
_CANONICAL_LEVEL = 4


class Neighbors(NamedTuple):
    """The two pixels on either side of a point along an axis, and how they share its weight."""

    low: Tensor  # [...] int32
    high: Tensor  # [...] int32; the same pixel at the border
    high_weight: Tensor  # [...] float32, 0..1; the low pixel has the rest


def neighbors(points: Tensor, length: Tensor) -> Neighbors:
    """Returns the pixels between which to interpolate; beyond the border, that of the border.

    Args:
        points: [...] float32, where 0 is the centre of the first pixel.
        length: [...] float32 or a number, pixels along the axis.
    """
    points = ops.clip(points, 0.0, length - 1.0)
    low = ops.floor(points)
    high = ops.minimum(low + 1.0, length - 1.0)
    return Neighbors(ops.cast(low, "int32"), ops.cast(high, "int32"), points - low)


def assign_levels(boxes: Tensor, *, min_level: int, max_level: int) -> Tensor:
    """Returns the level [...] int32 to pool each box of [..., 4] from, by its area.

    `floor(4 + log2(sqrt(area) / 224))`, clipped to the levels that there are (Lin et al., arXiv
    1612.03144, equation 1).
    """
    side = ops.sqrt(ops.maximum(box_areas(boxes), 1e-6))
    # The last term keeps a side of exactly 112 or 224 pixels on its level despite rounding.
    level = ops.floor(_CANONICAL_LEVEL + ops.log2(side / _CANONICAL_SIDE) + 1e-6)
    return ops.cast(ops.clip(level, min_level, max_level), "int32")


def roi_align(
    features: Mapping[int, Tensor],
    boxes: Tensor,
    *,
    output_size: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Pools the features under each box into a square of bins.

    A bin is the mean of `sampling_ratio**2` evenly spaced points, each interpolated between the
    four nearest cells of the map. Points up to one cell outside the map take the border's value,
    others 0. Costs `(2 * sampling_ratio)**2` gathers of B x K x output_size**2 rows of C numbers,
    103 MB each in float32 at 4 images, 512 boxes, 7 bins and 256 channels; compilers fuse them.

    Args:
        features: {level: [B, h, w, C]}, consecutive levels; level l has a stride of 2**l pixels.
            Any float type; interpolation is in float32, and so are the sums of their gradient.
        boxes: [B, K, 4] float32, canvas pixels; they get no gradient.
        output_size: S, bins along each side.
        sampling_ratio: points per bin along each side.
        aligned: whether features stand for the centres of their cells, half a stride from the
            corner, as in Detectron2. False shifts boxes by that and takes sides under one cell for
            one, as torchvision's detectors do.

    Returns:
        [B, K, S, S, C] of the features' type.
    """
    levels = sorted(features)
    boxes = ops.stop_gradient(ops.cast(boxes, "float32"))
    index = assign_levels(boxes, min_level=levels[0], max_level=levels[-1]) - levels[0]
    sizes = np.array([features[level].shape[1:3] for level in levels])
    areas = sizes.prod(axis=1)
    table = _cells([features[level] for level in levels])

    def per_box(values: np.ndarray, dtype: str) -> Tensor:  # [levels] -> [B, K, 1]
        return ops.take(ops.convert_to_tensor(values.astype(dtype)), index)[..., None]

    strides = per_box(2.0 ** np.array(levels), "float32")
    rows, columns = (
        _axis_taps(
            boxes[..., axis, None] / strides,
            boxes[..., axis + 2, None] / strides,
            per_box(sizes[:, axis], "float32"),
            output_size=output_size,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
        )
        for axis in (0, 1)
    )
    images = ops.arange(ops.shape(boxes)[0], dtype="int32")[:, None, None]
    starts = (per_box(np.cumsum(areas) - areas, "int32") + images * int(areas.sum()))[..., None]
    widths = per_box(sizes[:, 1], "int32")[..., None]
    total = 0.0
    for row, row_weight in rows:
        for column, column_weight in columns:
            cells = starts + row[..., :, None] * widths + column[..., None, :]
            weights = row_weight[..., :, None] * column_weight[..., None, :]
            total = total + ops.take(table, cells, axis=0) * weights[..., None]
    return ops.cast(total, features[levels[0]].dtype)


def _cells(maps: Sequence[Tensor]) -> Tensor:
    """Returns the cells of all images and levels as float32 rows: one gather serves all boxes."""
    channels = maps[0].shape[-1]
    # The gradient of gathers adds up where boxes overlap: in bfloat16 a cell below 1,000 boxes got
    # 256. Converted before the reshaping, since TensorFlow would convert rows that it has not added
    # up yet.
    maps = [ops.cast(one, "float32") for one in maps]
    rows = [ops.reshape(one, (-1, math.prod(one.shape[1:3]), channels)) for one in maps]
    return ops.reshape(ops.concatenate(rows, axis=1), (-1, channels))


def _axis_taps(
    start: Tensor,
    stop: Tensor,
    length: Tensor,
    *,
    output_size: int,
    sampling_ratio: int,
    aligned: bool,
) -> list[tuple[Tensor, Tensor]]:
    """Returns the cells that each bin takes along an axis and their weights, [B, K, S] each.

    Args:
        start: [B, K, 1] float32, the box's lower side in cells.
        stop: [B, K, 1] float32, its upper side.
        length: [B, K, 1] float32, cells along the axis.
        output_size: as of `roi_align`.
        sampling_ratio: as of `roi_align`.
        aligned: as of `roi_align`.
    """
    size = stop - start if aligned else ops.maximum(stop - start, 1.0)
    start = start - 0.5 if aligned else start
    taps = []
    for sample in range(sampling_ratio):
        shares = (ops.arange(output_size, dtype="float32") + (sample + 0.5) / sampling_ratio) / (
            output_size
        )
        points = start + size * shares
        near = ops.cast((points >= -1.0) & (points <= length), "float32") / sampling_ratio
        low, high, high_weight = neighbors(points, length)
        taps += [(low, (1.0 - high_weight) * near), (high, high_weight * near)]
    return taps
