"""Reads the records of a set in a random order that can be resumed at any place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, record_offsets, unconverted
from tpudet.trainkit.types import Tensor

# Records read at once and ahead. Few from a disk, so that a record is still in the processor's
# cache when it is decoded; from a bucket, where each takes some 50 ms, many.
READS_FROM_DISK, READS_FROM_BUCKET = 4, 64
_BUCKET_BUFFER_BYTES = 1 << 18  # so that most records take one request; a disk needs no buffer


def read_shuffled(
    shards: Sequence[str],
    records_per_shard: Sequence[int],
    *,
    seed: int,
    start_record: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    whole_files: bool = True,
) -> tf.data.Dataset:
    """Reads the records epoch after epoch without end, in an order fixed by (seed, epoch) alone.

    The order is a permutation of all records with (seed, epoch) as its key, computed for one place
    at a time. So the stream from `start_record` is the tail of the whole stream and begins at once,
    and no record is read that is not in it.

    Args:
        shards: paths, as `find_shards` lists them.
        records_per_shard: records of each.
        seed: any int64.
        start_record: records consumed since the beginning of the run, over all epochs and
            processes.
        process_index: of this process.
        process_count: processes that take turns; together they read the same records whatever
            their number, and none reads those of another.
        whole_files: whether the files have no more records; else their first ones are read.

    Returns:
        Dataset of (epoch [] int64, record number [] int64, serialized [] string).

    Raises:
        ValueError: no records, a negative `start_record`, lengths that differ.
        UserError: a file has another number of records.
    """
    total = sum(records_per_shard)
    _check_arguments(shards, records_per_shard, start_record)
    offsets = tf.constant(_first_offsets(shards, records_per_shard, whole_files=whole_files))
    paths = tf.constant(list(shards))
    ends = tf.constant(np.cumsum(records_per_shard), tf.int64)
    counts = tf.constant(list(records_per_shard), tf.int64)
    reads = READS_FROM_BUCKET if storage.is_remote(shards[0]) else READS_FROM_DISK

    def read(position: Tensor) -> tf.data.Dataset:
        epoch, place = position // total, position % total
        record = tf.random.experimental.index_shuffle(
            place, _epoch_seed(seed, epoch), tf.constant(total - 1, tf.int64)
        )
        shard = tf.searchsorted(ends, [record], side="right", out_type=tf.int64)[0]
        number = shard * RECORDS_PER_SHARD_LIMIT + record - (ends[shard] - counts[shard])
        one = _record_at(paths[shard], offsets[record], is_remote=storage.is_remote(shards[0]))
        numbers = map(tf.data.Dataset.from_tensors, (epoch, number))
        return tf.data.Dataset.zip((*numbers, one))

    positions = tf.data.Dataset.range(
        start_record + process_index, np.iinfo(np.int64).max, process_count
    )
    return positions.interleave(
        unconverted(read),
        cycle_length=reads,
        block_length=1,
        num_parallel_calls=reads,
        deterministic=True,
    )


def _check_arguments(
    shards: Sequence[str], records_per_shard: Sequence[int], start_record: int
) -> None:
    total = sum(records_per_shard)
    if len(shards) != len(records_per_shard) or total < 1 or start_record < 0:
        raise ValueError(
            f"Cannot read {total} records of {len(records_per_shard)} shards in {len(shards)} "
            f"files from record {start_record}: there must be one count per file, at least one "
            "record in all, and a start_record of at least 0."
        )


def _record_at(path: Tensor, offset: Tensor, *, is_remote: bool) -> tf.data.Dataset:
    # The public class takes no offsets.
    from_there = tf.raw_ops.TFRecordDatasetV2(
        filenames=path,
        compression_type="",
        buffer_size=_BUCKET_BUFFER_BYTES if is_remote else 0,
        byte_offsets=offset,
    )
    records: Any = tf.data.experimental.from_variant(from_there, tf.TensorSpec([], tf.string))
    return records.take(1)


def _first_offsets(
    shards: Sequence[str], records_per_shard: Sequence[int], *, whole_files: bool
) -> np.ndarray:
    """Returns where each record that is read begins in its file, [records] int64."""
    parts = []
    for path, count in zip(shards, records_per_shard, strict=True):
        offsets = record_offsets(path)
        found = len(offsets) - 1
        if found < count or (whole_files and found != count):
            raise UserError(
                f"{path} has {found} records, not {count}. Copy it again, or write the set again."
            )
        parts.append(offsets[:count])
    return np.concatenate(parts)


def _epoch_seed(seed: int, epoch: Tensor | int) -> Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
