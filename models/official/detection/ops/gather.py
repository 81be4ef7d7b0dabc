"""Rows of each image's own array, picked by number."""

from tpudet.trainkit.keras_ops import ops
from tpudet.trainkit.types import Tensor


def gather_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Returns `values[b, rows[b, ...]]` for every image b, as one gather over the whole batch.

    Args:
        values: [B, N, ...]; all dimensions but the first are static.
        rows: [B, ...] integer, 0 to N - 1.

    Returns:
        The shape of `rows`, then that of a row of `values`.
    """
    batch, count = ops.shape(values)[:2]
    starts = ops.reshape(
        ops.arange(batch, dtype="int32") * count, (-1, *[1] * (len(rows.shape) - 1))
    )
    flat = ops.reshape(values, (-1, *values.shape[2:]))
    return ops.take(flat, ops.cast(rows, "int32") + starts, axis=0)
