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
        images: [B, H, W, 3] uint8.
        pixel_mean: Mean of each colour, for pixels in 0..1.
        pixel_std: Standard deviation of each colour.
        dtype: Of the result; the arithmetic is in float32.
    """
    mean, std = np.asarray(pixel_mean, np.float64), np.asarray(pixel_std, np.float64)
    scale = ops.convert_to_tensor(1.0 / (255.0 * std), "float32")
    shift = ops.convert_to_tensor(-mean / std, "float32")
    return ops.cast(ops.cast(images, "float32") * scale + shift, dtype)
