"""Greedy non-maximum suppression per class, block by block, without a loop over classes."""

from typing import NamedTuple

import numpy as np

from tpudet.detection.ops.boxes import iou_matrix
from tpudet.detection.ops.gather import gather_rows
from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor

_BLOCK_SIZE = 128


class _Candidates(NamedTuple):
    """Boxes in descending order of score; in blocks, each array has a first dimension of blocks."""

    boxes: Tensor  # [B, K, 4]
    classes: Tensor  # [B, K]
    usable: Tensor  # [B, K] bool


def without_negative_zeros(values: Tensor) -> Tensor:
    """Replaces -0.0 with 0.0: they are equal, yet backends rank them differently."""
    return ops.where(values == 0, ops.zeros_like(values), values)


def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    classes: Tensor,
    *,
    iou_threshold: float,
    max_detections: int,
) -> Tensor:
    """Returns the kept rows [B, max_detections] int32 by descending score, padded with -1.

    The rule: keep the row of highest score (the first of equal ones), drop all rows of its class
    whose IoU with it exceeds `iou_threshold`, and repeat. This equals greedy suppression within
    each class followed by keeping the `max_detections` best of all classes, because a row kept
    later cannot drop one kept earlier. Classes are compared directly: the common trick of shifting
    boxes apart by class costs the low digits of float32 coordinates.

    Blocks of 128 rows are taken by descending score, see `_keep_of_block`: exactly the greedy
    result. A block costs an IoU matrix [B, 128, max_detections + 128]; there are K / 128 at most.

    Args:
        boxes: [B, K, 4].
        scores: [B, K]; minus infinity excludes a row.
        classes: [B, K] integer, 0 or more.
        iou_threshold: IoU above which the row of lower score is dropped, 0..1.
        max_detections: number of rows to return.
    """
    batch, count = ops.shape(scores)
    ranked, order = ops.top_k(without_negative_zeros(scores), count)
    order = ops.cast(order, "int32")
    candidates = _Candidates(
        gather_rows(boxes, order), gather_rows(classes, order), ranked > -float("inf")
    )
    size = min(_BLOCK_SIZE, count)
    blocks = _Candidates(*(_in_blocks(values, size) for values in candidates))
    num_blocks = blocks.usable.shape[0]
    places = ops.arange(size, dtype="int32")

    def continues(step: Tensor, kept: Tensor, num_kept: Tensor) -> Tensor:
        del kept
        # In descending order of score: a block whose first row is not usable is empty, and so are
        # all after it.
        block = ops.minimum(step, num_blocks - 1)
        left = ops.take(blocks.usable[:, :, 0], block, axis=0)
        return (step < num_blocks) & ops.any(left & (num_kept < max_detections))

    def add_block(step: Tensor, kept: Tensor, num_kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = _Candidates(*(ops.take(values, step, axis=0) for values in blocks))
        new = _keep_of_block(block, candidates, kept, iou_threshold)
        # Each new row goes to the next free slot; all others past the end.
        slots = num_kept[:, None] + ops.cumsum(ops.cast(new, "int32"), axis=1) - 1
        slots = ops.where(new, ops.minimum(slots, max_detections), max_detections)
        kept = kept + _scatter(slots, step * size + places + 1, max_detections)
        num_kept = num_kept + ops.sum(ops.cast(new, "int32"), axis=1)
        return step + 1, kept, ops.minimum(num_kept, max_detections)

    nothing = ops.full((batch, max_detections), -1, dtype="int32")
    start = ops.convert_to_tensor(0, "int32"), nothing, nothing[:, 0] * 0
    kept = ops.while_loop(continues, add_block, start)[1]
    rows = ops.take_along_axis(order, ops.maximum(kept, 0), axis=1)
    return ops.where(kept >= 0, rows, -1)


def _in_blocks(values: Tensor, size: int) -> Tensor:
    # [B, K, ...] -> [K / size, B, size, ...], the last one filled up with zeros.
    count, rest = values.shape[1], values.shape[2:]
    padding = -count % size
    values = ops.pad(values, [[0, 0], [0, padding], *[[0, 0]] * len(rest)])
    values = ops.reshape(values, (-1, (count + padding) // size, size, *rest))
    return ops.swapaxes(values, 0, 1)


def _overlaps(rows: _Candidates, others: _Candidates, iou_threshold: float) -> Tensor:
    # [B, rows, others] bool: whether a usable other of its class would drop the row.
    same_class = rows.classes[:, :, None] == others.classes[:, None, :]
    above = iou_matrix(rows.boxes, others.boxes) > iou_threshold
    return above & same_class & others.usable[:, None, :]


def _keep_of_block(
    block: _Candidates, candidates: _Candidates, kept: Tensor, iou_threshold: float
) -> Tensor:
    """Returns which rows of a block [B, n] are kept, given those kept before (-1: none).

    A block loses what overlaps the rows kept before, then suppresses within itself.
    """
    rows = ops.maximum(kept, 0)
    before = _Candidates(
        gather_rows(candidates.boxes, rows), gather_rows(candidates.classes, rows), kept >= 0
    )
    clash = _overlaps(block, before, iou_threshold)
    alive = block.usable & ~ops.any(clash, axis=2)
    return _suppress_within(alive, _overlaps(block, block, iou_threshold))


def _suppress_within(alive: Tensor, overlaps: Tensor) -> Tensor:
    """Returns which rows of a block, [B, T] bool, greedy suppression within it keeps.

    A row is kept if it is alive and no kept row before it overlaps it. Beginning with all that are
    alive, this is applied until nothing changes: after n rounds the first n rows are right, since
    they depend only on earlier ones; a handful of rounds is enough as a rule.

    Args:
        alive: [B, T] bool.
        overlaps: [B, T, T] bool, whether two rows exclude each other.
    """
    size = alive.shape[1]
    by_earlier = overlaps & ops.convert_to_tensor(np.tri(size, k=-1, dtype=bool))

    def keep_once(kept: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
        del changed
        again = alive & ~ops.any(by_earlier & kept[:, None, :], axis=2)
        return again, ops.any(again != kept)

    changed = ops.convert_to_tensor(True)
    return ops.while_loop(lambda kept, changed: changed, keep_once, (alive, changed))[0]


def _scatter(slots: Tensor, values: Tensor, length: int) -> Tensor:
    # Writes values [T] to slots [B, T] of [B, length] int32, 0 elsewhere; slot `length` is dropped.
    batch = ops.shape(slots)[0]
    images = ops.broadcast_to(ops.arange(batch, dtype="int32")[:, None], ops.shape(slots))
    indices = ops.reshape(ops.stack([images, slots], axis=-1), (-1, 2))
    values = ops.reshape(ops.broadcast_to(values, ops.shape(slots)), (-1,))
    return ops.scatter(indices, values, (batch, length + 1))[:, :length]
