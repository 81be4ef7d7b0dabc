"""Converts segmentations to PNG masks: COCO's, with pycocotools, and files."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import run_lengths
from tpudet.detection.preparation.sources.mask_files import read_mask_file
from tpudet.trainkit.images.pixel_limit import MAX_PIXELS
from tpudet.trainkit.images.standardize import turn_upright

# Pixels along the polygons of one object: pycocotools takes some 100 bytes for each.
_MAX_PERIMETER = 2**21


class MaskPng(NamedTuple):
    """A mask as records hold it."""

    encoded: bytes  # a PNG, 1 inside and 0 outside
    area: int  # pixels inside


def mask_png(segmentation: Any, *, height: int, width: int, orientation: int = 1) -> MaskPng | None:
    """Draws one object's mask.

    Args:
        segmentation: polygons (lists of x, y in pixels, or one such list), of which those with
            less than three corners are ignored; run lengths, compressed or not; or the path of an
            image, any value above 0 being inside. An image of the same shape but another size, as
            some of Open Images are, is resampled to the nearest pixel; a mask that this would lose
            has every pixel in which it lies.
        height: of the image, in pixels.
        width: of the image, in pixels.
        orientation: by EXIF, by which the drawn mask is turned upright.

    Returns:
        The mask of [height, width], turned; None if the segmentation is missing, malformed, of
        another size, too large or too long to draw, or covers no pixel.
    """
    mask = draw_mask(segmentation, height=height, width=width)
    if mask is None:
        return None
    done, encoded = cv2.imencode(".png", turn_upright(mask, orientation))
    return MaskPng(encoded.tobytes(), int(mask.sum())) if done else None


def draw_mask(segmentation: Any, *, height: int, width: int) -> np.ndarray | None:
    """Draws one object's mask, as `mask_png` stores it: [height, width] uint8, 1 inside, 0 outside.

    None where `mask_png` returns None.
    """
    if isinstance(segmentation, str):
        mask = _read_file(segmentation, height=height, width=width)
    else:
        mask = _draw(segmentation, height=height, width=width)
    return None if mask is None or not mask.any() else mask


def describe_undrawn(segmentation: Any, *, height: int, width: int) -> str:
    """Says why there is no mask, of what `draw_mask` returns None for; the same arguments."""
    if segmentation is None:
        return "no segmentation"
    if isinstance(segmentation, str):
        return "a file that cannot be read, is empty or has another shape"
    if isinstance(segmentation, list):
        is_flat = any(isinstance(value, int | float) for value in segmentation)
        found = any(map(_is_polygon, [segmentation] if is_flat else segmentation))
        return "polygons without a pixel inside, or too long" if found else "no polygon"
    size = segmentation.get("size") if isinstance(segmentation, dict) else None
    if not isinstance(size, list) or [type(side) for side in size] != [int, int]:
        return "neither polygons nor run lengths with a size"
    if size != [height, width]:
        return f"run lengths of {size[1]}x{size[0]}, image {width}x{height}"
    is_read = _counts(segmentation.get("counts"), pixels=height * width) is not None
    return "run lengths without a pixel inside" if is_read else "run lengths that cannot be read"


def run_lengths_box(
    segmentation: Any, *, height: float | None, width: float | None
) -> tuple[float, ...] | None:
    """Returns y1 x1 y2 x2 in pixels around run lengths, compressed or not.

    None for anything else, for run lengths of another or too large a size, and where nothing is
    inside.

    Args:
        segmentation: as for `mask_png`.
        height: of the image, in pixels; None or NaN where it is not declared.
        width: likewise.
    """
    size = segmentation.get("size") if isinstance(segmentation, dict) else None
    if not isinstance(size, list) or [type(side) for side in size] != [int, int]:
        return None
    if not _agree(size, (height, width)):
        return None
    runs = _run_lengths(segmentation, height=size[0], width=size[1])
    if runs is None:
        return None
    box: Any = coco_mask.toBbox(runs)
    x, y, box_width, box_height = box.tolist()
    return (y, x, y + box_height, x + box_width) if box_width and box_height else None


def _agree(size: Sequence[int], declared: tuple[float | None, float | None]) -> bool:
    """Whether no side differs from a declared one."""
    return all(
        expected is None or math.isnan(expected) or side == expected
        for side, expected in zip(size, declared, strict=True)
    )


def _read_file(path: str, *, height: int, width: int) -> np.ndarray | None:
    try:
        mask = read_mask_file(path)
    except OSError:
        return None
    if mask is None:
        return None
    if abs(mask.shape[0] * width - mask.shape[1] * height) > max(*mask.shape, height, width):
        return None  # more than a pixel of another shape
    pixels = mask.astype(np.uint8)
    resampled = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_NEAREST_EXACT)
    if not resampled.any():  # thinner than a pixel: in every pixel in which it lies
        lines, columns = np.nonzero(mask)
        resampled[lines * height // mask.shape[0], columns * width // mask.shape[1]] = 1
    return resampled


def _draw(segmentation: Any, *, height: int, width: int) -> np.ndarray | None:
    if height * width > MAX_PIXELS:
        return None
    if isinstance(segmentation, list):
        is_flat = any(isinstance(value, int | float) for value in segmentation)
        found = filter(_is_polygon, [segmentation] if is_flat else segmentation)
        polygons: list[Any] = [
            _within_reach(points, height=height, width=width) for points in found
        ]
        polygons = [points for points in polygons if len(points) >= 6]
        if not polygons or sum(map(_perimeter, polygons)) > _MAX_PERIMETER:
            return None
        runs = _union(coco_mask.frPyObjects(polygons, height, width))
    else:
        runs = _run_lengths(segmentation, height=height, width=width)
    return None if runs is None else _decode(runs)


def _run_lengths(segmentation: Any, *, height: int, width: int) -> Any:
    """Returns run lengths as pycocotools takes them; None if they are not those of such a mask."""
    if not isinstance(segmentation, dict) or segmentation.get("size") != [height, width]:
        return None
    if min(height, width) < 1 or height * width > MAX_PIXELS:
        return None
    counts = _counts(segmentation.get("counts"), pixels=height * width)
    if counts is None:
        return None
    uncompressed: Any = {"size": [height, width], "counts": counts}  # the stubs forbid a list
    return coco_mask.frPyObjects(uncompressed, height, width)


def _is_polygon(points: object) -> bool:
    """At least three corners; pycocotools would interpret anything else as another form."""
    return (
        isinstance(points, list)
        and len(points) >= 6
        and len(points) % 2 == 0
        and all(isinstance(value, int | float) and abs(value) < 2**31 for value in points)
    )


def _within_reach(points: list[float], *, height: int, width: int) -> list[float]:
    """Cuts off what lies farther outside the image than its width or height.

    Its pixels would be computed, too. What is nearer is not cut, which would round its corners.
    """
    corners = np.reshape(np.asarray(points, np.float64), (-1, 2))
    low, high = np.array([[-width, -height], [2.0 * width, 2.0 * height]])
    if (corners >= low).all() and (corners <= high).all():
        return points
    for axis in (0, 1):
        for sign, limit in ((1, low[axis]), (-1, high[axis])):
            depths = sign * (corners[:, axis] - limit)
            corners = _cut(corners, depths)
    return corners.ravel().tolist()


def _cut(corners: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Returns the part of a polygon where the depth, linear in x and y, is not negative."""
    before, depths_before = np.roll(corners, 1, axis=0), np.roll(depths, 1)
    is_inside = depths >= 0
    crosses = is_inside != (depths_before >= 0)
    share = depths_before / np.where(crosses, depths_before - depths, 1)
    crossings = before + share[:, None] * (corners - before)
    pairs = np.stack([crossings, corners], axis=1)
    return pairs[np.stack([crosses, is_inside], axis=1)]


def _union(parts: list[Any]) -> Any:
    """Joins run lengths by halves: pycocotools reads all that it has joined again for each part."""
    while len(parts) > 1:
        parts = [coco_mask.merge(parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]


def _perimeter(points: list[float]) -> float:
    corners = np.reshape(np.asarray(points, np.float64), (-1, 2))
    return float(np.abs(corners - np.roll(corners, 1, axis=0)).max(axis=1).sum())


def _counts(counts: Any, *, pixels: int) -> list[int] | None:
    """Returns the run lengths if they are valid and fill the image, else None.

    Otherwise pycocotools would return uninitialised memory.
    """
    if isinstance(counts, str):
        try:
            counts = run_lengths(counts).tolist()
        except ValueError:
            return None
    valid = isinstance(counts, list) and all(isinstance(n, int) and n >= 0 for n in counts)
    return counts if valid and sum(counts) == pixels else None


def _decode(runs: Any) -> np.ndarray:
    with warnings.catch_warnings():
        # pycocotools 2.0.11 builds its arrays in a way that NumPy 2 deprecates.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        return coco_mask.decode(runs)
