"""Normalises pixels for a backbone, inside the model, so that the host sends bytes."""

from collections.abc import Sequence

import numpy as np

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def normalize_pixels(
    images: Tensor, *, pixel_mean: Sequence[float], pixel_std: Sequence[float], dtype: str
) -> Tensor:
    """Returns `(images / 255 - mean) / std` as one multiplication and one addition.

    Args:
        images: [B, H, W, 3] uint8, or float32 of the same range.
        pixel_mean: mean of each colour, for pixels in 0..1.
        pixel_std: standard deviation of each colour.
        dtype: of the result; the arithmetic is in float32.
    """
    mean, std = np.asarray(pixel_mean, np.float64), np.asarray(pixel_std, np.float64)
    scale = ops.convert_to_tensor(1.0 / (255.0 * std), "float32")
    shift = ops.convert_to_tensor(-mean / std, "float32")
    return ops.cast(ops.cast(images, "float32") * scale + shift, dtype)


def fill_outside(images: Tensor, regions: Tensor, *, colour: Sequence[float]) -> Tensor:
    """Returns the images [B, H, W, 3] as float32, with one colour outside their regions.

    The mean of `normalize_pixels` becomes 0 there: what systems that pad after normalising have.

    Args:
        images: [B, H, W, 3] uint8.
        regions: [B, 4], the part of each that stays: y1 x1 y2 x2 in pixels.
        colour: red, green and blue in 0..1.
    """

    def inside(side: int) -> Tensor:  # [B, pixels of the side]
        centers = ops.arange(images.shape[1 + side], dtype="float32") + 0.5
        return (centers >= regions[:, side, None]) & (centers < regions[:, 2 + side, None])

    kept = inside(0)[:, :, None, None] & inside(1)[:, None, :, None]
    filling = ops.convert_to_tensor([255.0 * value for value in colour], "float32")
    return ops.where(kept, ops.cast(images, "float32"), filling)
