"""Converts COCO segmentations to PNG masks, with pycocotools."""

import warnings
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import run_lengths

# Pixels along the polygons of one object: pycocotools takes some 100 bytes for each, in the image
# or not.
_MAX_PERIMETER = 2**21


def mask_png(segmentation: Any, *, height: int, width: int) -> bytes | None:
    """Draws one object's mask.

    Args:
        segmentation: polygons (lists of x, y in pixels, or one such list), of which those with
            less than three corners are ignored, or run lengths, compressed or not.
        height: of the image, in pixels.
        width: of the image, in pixels.

    Returns:
        A PNG of [height, width], 1 inside and 0 outside; None if the segmentation is missing,
        malformed, of another size, too long to draw, or covers no pixel.
    """
    if isinstance(segmentation, list):
        is_flat = any(isinstance(value, int | float) for value in segmentation)
        polygons = list(filter(_is_polygon, [segmentation] if is_flat else segmentation))
        if not polygons or sum(map(_perimeter, polygons)) > _MAX_PERIMETER:
            return None
        runs = coco_mask.merge(coco_mask.frPyObjects(polygons, height, width))
    elif isinstance(segmentation, dict) and segmentation.get("size") == [height, width]:
        counts = _counts(segmentation.get("counts"), pixels=height * width)
        if counts is None:
            return None
        uncompressed: Any = {"size": [height, width], "counts": counts}  # the stubs forbid a list
        runs = coco_mask.frPyObjects(uncompressed, height, width)
    else:
        return None
    mask = _decode(runs)
    if not mask.any():
        return None
    done, encoded = cv2.imencode(".png", np.ascontiguousarray(mask))
    return encoded.tobytes() if done else None


def _is_polygon(points: object) -> bool:
    """At least three corners; pycocotools would interpret anything else as another form."""
    return (
        isinstance(points, list)
        and len(points) >= 6
        and len(points) % 2 == 0
        and all(isinstance(value, int | float) and abs(value) < 2**31 for value in points)
    )


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
