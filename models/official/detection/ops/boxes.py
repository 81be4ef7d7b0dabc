"""Box arithmetic: areas, overlaps, deltas against anchors."""

import math
from collections.abc import Sequence
from typing import Literal

from tpudet.detection.types import Batch
from tpudet.trainkit.backbones.pixels import fill_outside
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

Padding = Literal["black", "mean"]

# A decoded side is at most 62.5 times its anchor's, which keeps exp finite.
MAX_LOG_SIZE = math.log(1000.0 / 16.0)
_LOW, _HIGH = slice(0, 2), slice(2, 4)  # y1 x1 and y2 x2 of a box
_MIN_AREA = 1e-8  # pixels²; makes the overlap of two empty boxes 0 instead of 0 / 0


def box_areas(boxes: Tensor) -> Tensor:
    """Returns the areas [...] of boxes [..., 4]; 0 for a box with negative sides."""
    heights = ops.maximum(boxes[..., 2] - boxes[..., 0], 0.0)
    return heights * ops.maximum(boxes[..., 3] - boxes[..., 1], 0.0)


def paired_intersections(first: Tensor, second: Tensor) -> Tensor:
    """Returns the intersection areas [...] of pairs of boxes, both [..., 4]."""

    def shared(low: int, high: int) -> Tensor:
        end = ops.minimum(first[..., high], second[..., high])
        return ops.maximum(end - ops.maximum(first[..., low], second[..., low]), 0.0)

    return shared(0, 2) * shared(1, 3)


def intersection_matrix(first: Tensor, second: Tensor) -> Tensor:
    """Returns the intersection areas [..., M, N] of boxes [..., M, 4] and [..., N, 4]."""
    return paired_intersections(first[..., :, None, :], second[..., None, :, :])


def iou_matrix(first: Tensor, second: Tensor) -> Tensor:
    """Returns intersection over union [..., M, N] of boxes [..., M, 4] and [..., N, 4], 0..1.

    It is 0 for two boxes without area.
    """
    return iou_of_intersections(intersection_matrix(first, second), first, second)


def iou_of_intersections(shared: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Returns `iou_matrix` where the `intersection_matrix` [..., M, N] is known already."""
    union = box_areas(first)[..., :, None] + box_areas(second)[..., None, :] - shared
    return shared / ops.maximum(union, _MIN_AREA)


def _centers_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    sizes = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sizes, sizes


def encode_boxes(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Returns the deltas [..., 4] `ty, tx, th, tw` of boxes against anchors, both [..., 4].

    `ty = (y - ya) / ha`, `th = log(h / ha)` of centres and sizes (Girshick et al., arXiv
    1311.2524, appendix C), without scale factors. Sides must be positive. Inverse of
    `decode_boxes` for boxes whose sides are at most 62.5 times the anchor's.
    """
    centers, sizes = _centers_and_sizes(boxes)
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    shifts = (centers - anchor_centers) / anchor_sizes
    return ops.concatenate([shifts, ops.log(sizes / anchor_sizes)], axis=-1)


def decode_boxes(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Returns the boxes [..., 4] of deltas against anchors, both [..., 4]; not clipped.

    Inverse of `encode_boxes`. Size deltas are clipped to at most log(1000 / 16).
    """
    anchor_centers, anchor_sizes = _centers_and_sizes(anchors)
    centers = deltas[..., :2] * anchor_sizes + anchor_centers
    halves = 0.5 * ops.exp(ops.minimum(deltas[..., 2:], MAX_LOG_SIZE)) * anchor_sizes
    return ops.concatenate([centers - halves, centers + halves], axis=-1)


def clip_boxes(boxes: Tensor, *, height: float, width: float) -> Tensor:
    """Clips boxes [..., 4] to 0..height and 0..width."""
    return ops.clip(boxes, 0.0, ops.convert_to_tensor([height, width, height, width], boxes.dtype))


def clip_to_regions(boxes: Tensor, regions: Tensor) -> Tensor:
    """Clips the boxes [B, K, 4] of each image to its region [B, 4]."""
    low, high = (ops.tile(regions[:, None, side], (1, 1, 2)) for side in (_LOW, _HIGH))
    return ops.clip(boxes, low, high)


def image_regions(batch: Batch) -> Tensor:
    """Returns the region [B, 4] of each canvas that shows its image; the rest is padding."""
    height, width = batch.images.shape[1:3]
    ends = ops.multiply(batch.original_sizes, batch.scales) - batch.offsets
    corners = ops.concatenate([ops.negative(batch.offsets), ends], axis=-1)
    return ops.clip(corners, 0.0, ops.convert_to_tensor([height, width] * 2, "float32"))


def padding_rgb(padding: Padding, *, mean: Sequence[float]) -> list[int]:
    """Returns the colour that `padded_images` gives to what is beyond an image, as uint8."""
    return [0, 0, 0] if padding == "black" else [round(255 * value) for value in mean]


def padded_images(batch: Batch, padding: Padding, *, mean: Sequence[float]) -> Tensor:
    """Returns the images [B, H, W, 3] of a batch with what the network sees beyond each.

    Args:
        batch: black beyond its images.
        padding: "black", or "mean": that colour.
        mean: red, green and blue in 0..1.
    """
    if padding == "black":
        return batch.images
    return fill_outside(batch.images, image_regions(batch), colour=mean)
