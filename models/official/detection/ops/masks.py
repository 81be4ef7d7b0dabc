"""Training targets of a mask head, cut from the masks of whole images, which are packed to bits.

Convention: a canvas pixel is a unit square whose value lies at its centre, and the M x M cells of
a target divide their box evenly. A cell takes the mask's value at its own centre, interpolated
between the four nearest pixels, and is 1 from 0.5 on. `numpy_masks.paste_mask` is the inverse, so
boxes at any fraction of a pixel lose nothing but resolution. Detectron2 averages several points per
cell before the same threshold (`ROIAlign` with `aligned=True`); torchvision averages without
half-pixel shift and keeps the averages as soft targets.
"""

import numpy as np

from tpudet.detection.ops.gather import gather_rows
from tpudet.detection.ops.roi_align import neighbors
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_ONE = np.uint8(1)
_SHIFTS = np.arange(7, -1, -1, dtype=np.uint8)  # of the bits of a byte, the leftmost pixel first


def mask_targets(masks: Tensor, boxes: Tensor, instances: Tensor, *, size: int) -> Tensor:
    """Returns the part of each box's instance within the box, [B, K, M, M] float32, 0 or 1.

    Args:
        masks: [B, N, H, W / 8] uint8, a bit per pixel as in `Batch`.
        boxes: [B, K, 4] float32, canvas pixels.
        instances: [B, K] integer, 0 to N - 1, whose mask is cut.
        size: M, cells along each side.
    """
    return ops.cast(crop_masks(masks, boxes, instances, size=size) >= 0.5, "float32")


def crop_masks(masks: Tensor, boxes: Tensor, instances: Tensor, *, size: int) -> Tensor:
    """Returns the interpolated values [B, K, M, M] float32, 0..1, before the threshold.

    Arguments as of `mask_targets`. Rows are gathered as bits, columns weighted by a product of
    matrices: gathering single bytes is slow on a TPU. Costs two float32 arrays of B x K x M x W: at
    4 images, 128 boxes, 28 cells and 1024 columns 59 MB each.
    """
    count, height, num_bytes = masks.shape[1:]
    width = 8 * num_bytes
    rows = neighbors(_cell_centers(boxes[..., 0], boxes[..., 2], size), float(height))
    # [B, N * H, W / 8]: so that row numbers stay small enough for int32.
    table = ops.reshape(masks, (-1, count * height, num_bytes))
    first = ops.cast(instances, "int32")[..., None] * height

    def take(row: Tensor) -> Tensor:  # [B, K, M] -> [B, K, M, W]
        packed = gather_rows(table, first + row)[..., None]
        bits = ops.bitwise_and(ops.right_shift(packed, ops.convert_to_tensor(_SHIFTS)), _ONE)
        return ops.reshape(ops.cast(bits, "float32"), (-1, *row.shape[1:], width))

    share = rows.high_weight[..., None]
    lines = take(rows.low) * (1.0 - share) + take(rows.high) * share
    centers = _cell_centers(boxes[..., 1], boxes[..., 3], size)
    centers = ops.clip(centers, 0.0, width - 1.0)[..., None]
    weights = ops.maximum(1.0 - ops.abs(centers - ops.arange(width, dtype="float32")), 0.0)
    return ops.matmul(lines, ops.swapaxes(weights, -1, -2))


def _cell_centers(start: Tensor, stop: Tensor, size: int) -> Tensor:
    # [B, K] -> [B, K, M] float32, where 0 is the centre of the first pixel.
    shares = (ops.arange(size, dtype="float32") + 0.5) / size
    return start[..., None] - 0.5 + (stop - start)[..., None] * shares
