"""Reads the records of a set in a random order that can be resumed at any place."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, all_record_offsets, unconverted
from tpudet.trainkit.types import Tensor

# Records read at once and ahead. Few from a disk, so that a record is still in the processor's
# cache when it is decoded; from a bucket, where each takes some 50 ms, many.
READS_FROM_DISK, READS_FROM_BUCKET = 4, 64
_BUCKET_BUFFER_BYTES = 1 << 18  # so that most records take one request; a disk needs no buffer


class ShuffledRecords(NamedTuple):
    """The records of a run in an order of their own, and the share that this process reads.

    Processes take turns: together they read the same records whatever their number.
    """

    shards: Sequence[str]  # paths, as `find_shards` lists them
    records_per_shard: Sequence[int]
    seed: int  # of the order, any int64
    process_index: int = 0
    process_count: int = 1
    whole_files: bool = True  # else files may have more records, and their first ones are read


def read_shuffled(records: ShuffledRecords, start_record: int = 0) -> tf.data.Dataset:
    """Reads the records epoch after epoch without end, in an order fixed by (seed, epoch) alone.

    The order is a permutation of all records with (seed, epoch) as its key, computed for one place
    at a time. So the stream from `start_record` is the tail of the whole stream and begins at once,
    and no record is read that is not in it.

    Args:
        records: of the run.
        start_record: records consumed since the beginning of the run, over all epochs and
            processes.

    Returns:
        Dataset of (epoch [] int64, record number [] int64, serialized [] string).

    Raises:
        ValueError: no records, a negative `start_record`, lengths that differ.
        UserError: a file has another number of records.
    """
    _check_arguments(records, start_record)
    total = sum(records.records_per_shard)
    offsets = tf.constant(_first_offsets(records))
    paths = tf.constant(list(records.shards))
    ends = tf.constant(np.cumsum(records.records_per_shard), tf.int64)
    counts = tf.constant(list(records.records_per_shard), tf.int64)
    is_remote = storage.is_remote(records.shards[0])
    reads = READS_FROM_BUCKET if is_remote else READS_FROM_DISK

    def read(position: Tensor) -> tf.data.Dataset:
        epoch, place = position // total, position % total
        record = tf.random.experimental.index_shuffle(
            place, _epoch_seed(records.seed, epoch), tf.constant(total - 1, tf.int64)
        )
        shard = tf.searchsorted(ends, [record], side="right", out_type=tf.int64)[0]
        number = shard * RECORDS_PER_SHARD_LIMIT + record - (ends[shard] - counts[shard])
        one = _record_at(paths[shard], offsets[record], is_remote=is_remote)
        numbers = map(tf.data.Dataset.from_tensors, (epoch, number))
        return tf.data.Dataset.zip((*numbers, one))

    positions = tf.data.Dataset.range(
        start_record + records.process_index, np.iinfo(np.int64).max, records.process_count
    )
    return positions.interleave(
        unconverted(read),
        cycle_length=reads,
        block_length=1,
        num_parallel_calls=reads,
        deterministic=True,
    )


def _check_arguments(records: ShuffledRecords, start_record: int) -> None:
    num_files, num_counts = len(records.shards), len(records.records_per_shard)
    total = sum(records.records_per_shard)
    if num_files != num_counts or total < 1 or start_record < 0:
        raise ValueError(
            f"Cannot read {total} records of {num_counts} shards in {num_files} files from record "
            f"{start_record}: there must be one count per file, at least one record in all, and a "
            "start_record of at least 0."
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


def _first_offsets(records: ShuffledRecords) -> np.ndarray:
    """Returns where each record that is read begins in its file, [records] int64."""
    parts = []
    stored = all_record_offsets(records.shards)
    for path, count, offsets in zip(records.shards, records.records_per_shard, stored, strict=True):
        found = len(offsets) - 1
        if found < count or (records.whole_files and found != count):
            raise UserError(
                f"{path} has {found} records, not {count}. Copy it again, or write the set again."
            )
        parts.append(offsets[:count])
    return np.concatenate(parts)


def _epoch_seed(seed: int, epoch: Tensor | int) -> Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
