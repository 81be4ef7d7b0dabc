"""Sharded TFRecord files: atomic writing, exact listing, reading in a reproducible order.

The files of one set are named `<prefix>-00000-of-00020.tfrecord`. A record's number is
`shard index * RECORDS_PER_SHARD_LIMIT + index in the shard`, an int64.
"""

import math
import os
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from crc32c import crc32c

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.types import Tensor

Record = bytes | Sequence[bytes]

RECORDS_PER_SHARD_LIMIT = 2**32

# Default size of the shuffle buffer of `read_shuffled`.
SHUFFLE_BUFFER_BYTES = 256 * 2**20

# Few, so that a record is still in the processor's cache when it is decoded: reading ahead an
# eighth of the shuffle buffer cost 4 % at 125 KB per record and 12 % at 312 KB. The price is a
# pause at each window's start while the buffer fills, 1.3 s of 100 s from a bucket of 200 MB/s.
READ_AHEAD_RECORDS = 4


def shard_path(prefix: str, index: int, count: int, ending: str = ".tfrecord") -> str:
    """Returns the path of shard `index` (from 0) of `count`.

    Raises:
        ValueError: the index is not below the count, or the count has more than five digits.
    """
    if not 0 <= index < count <= 99999:
        raise ValueError(
            f"Shard {index} of {count} does not exist: count is at most 99999, index below it."
        )
    return f"{prefix}-{index:05d}-of-{count:05d}{ending}"


def write_shard(path: str, records: Iterable[Record]) -> int:
    """Writes `records` to a file that gets its name when it is complete and flushed to the disk.

    Args:
        path: the final name.
        records: serialized, whole or in pieces, which saves the copy that would join them.

    Returns:
        The number of records written.
    """
    count = 0
    with storage.whole_file(path, "wb") as file:
        for record in records:
            _write_record(file, (record,) if isinstance(record, bytes) else record)
            count += 1
    return count


def _write_record(file: Any, pieces: Sequence[bytes]) -> None:
    """Writes length, its checksum, the pieces and their checksum, as tf.io.TFRecordWriter does.

    That writer takes only whole records, and its checksum takes as long as the writing itself.
    """
    length = struct.pack("<Q", sum(map(len, pieces)))
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    first, *others = pieces
    file.write(length + _masked(crc32c(length)) + first)
    for piece in others[:-1]:
        file.write(piece)
    file.write(b"".join((*others[-1:], _masked(checksum))))


def _masked(checksum: int) -> bytes:
    """Returns TFRecord's masked CRC-32C: rotated right by 15 bits, plus a constant."""
    rotated = checksum >> 15 | checksum << 17
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


def find_shards(prefix: str, ending: str = ".tfrecord") -> list[str]:
    """Lists the shards `<prefix>-?????-of-?????<ending>` in order.

    Raises:
        FileNotFoundError: there is none, or some are missing; names them.
        UserError: there are shards of several sets (different counts).
    """
    directory, stem = os.path.split(prefix)
    pattern = re.compile(re.escape(stem) + r"-(\d{5})-of-(\d{5})" + re.escape(ending))
    try:
        names = storage.list_folder(directory or ".")
    except FileNotFoundError:
        raise FileNotFoundError(f"No directory {directory!r} (looked for {prefix}-*).") from None
    matches = [match for match in map(pattern.fullmatch, names) if match]
    if not matches:
        others = [name for name in names if name.endswith(".tfrecord")]
        raise FileNotFoundError(
            f"No file {prefix}-?????-of-?????.tfrecord. The directory has "
            + (f"these: {', '.join(others[:10])}." if others else "no .tfrecord file.")
        )
    counts = sorted({int(match[2]) for match in matches})
    if len(counts) > 1:
        raise UserError(
            f"{prefix}-* mixes sets of {' and '.join(map(str, counts))} shards. Remove the old one."
        )
    wanted = [shard_path(prefix, index, counts[0], ending) for index in range(counts[0])]
    found = {os.path.join(directory, match[0]) for match in matches}
    missing = [path for path in wanted if path not in found]
    if missing or len(found) > len(wanted):
        raise FileNotFoundError(
            f"{len(found)} of {counts[0]} shards of {prefix} exist; missing: "
            f"{', '.join(missing[:10])}. Run make_tfrecords again; it resumes where it stopped."
        )
    return wanted


def count_records(shards: Sequence[str]) -> list[int]:
    """Counts the records of each shard from their lengths, without parsing them.

    Raises:
        UserError: a file ends in the middle of a record.
    """
    return [_count_in_file(path) for path in shards]


def read_records(shards: Sequence[str]) -> tf.data.Dataset:
    """Reads every record once, in file order.

    Returns:
        Dataset of (record number [] int64, serialized [] string).
    """
    indices = tf.range(len(shards), dtype=tf.int64)
    files: Any = tf.data.Dataset.from_tensor_slices((indices, list(shards)))
    return files.flat_map(_read_shard)


def evaluation_share(
    records: tf.data.Dataset,
    *,
    batch_size: int,
    process_index: int,
    process_count: int,
    num_records: int | None,
) -> tuple[tf.data.Dataset, int]:
    """Returns a process's records of an evaluation, and how many fillers complete its batches.

    The processes take turns. Each makes as many batches as the others, if need be of nothing but
    fillers.

    Args:
        records: all of a split.
        batch_size: of this process.
        process_index: of this process.
        process_count: processes that share the records.
        num_records: of the split; needed with several processes.
    """
    if process_count == 1:
        # The remainder that is dropped holds nothing but fillers.
        return records, batch_size - 1
    assert num_records is not None
    num_batches = math.ceil(num_records / (process_count * batch_size))
    num_own = len(range(process_index, num_records, process_count))
    return records.shard(process_count, process_index), num_batches * batch_size - num_own


def default_shuffle_buffer(shards: Sequence[str], records_per_shard: Sequence[int]) -> int:
    """Returns how many records of average size fit into `SHUFFLE_BUFFER_BYTES`, at least 1."""
    total_bytes = sum(storage.stat(path).size for path in shards)
    return max(1, SHUFFLE_BUFFER_BYTES * sum(records_per_shard) // max(1, total_bytes))


def read_shuffled(
    shards: Sequence[str],
    records_per_shard: Sequence[int],
    *,
    seed: int,
    start_record: int = 0,
    cycle_length: int = 16,
    shuffle_buffer: int | None = None,
    whole_files: bool = True,
) -> tf.data.Dataset:
    """Reads the records epoch after epoch without end, in an order fixed by (seed, epoch) alone.

    An epoch permutes the shards and splits them into windows of at most `cycle_length` and nearly
    equal size. A window's shards are read in turn, one record each, through a shuffle buffer whose
    seed is drawn from (seed, epoch, window).

    The stream from `start_record` is the tail of the whole stream: windows before it are skipped
    unread, and within its window the records before it are read but not decoded.

    Args:
        shards: paths, as `find_shards` lists them.
        records_per_shard: records of each; a file with another number is an error, unless
            `whole_files` is false.
        seed: any int64.
        start_record: records consumed since the beginning of the run, over all epochs.
        cycle_length: files open at once.
        shuffle_buffer: records to choose from. None: as many as fit into
            `SHUFFLE_BUFFER_BYTES`, about 2,200 photos of 120 KB.
        whole_files: whether the files end there; else their first records are read.

    Returns:
        Dataset of (epoch [] int64, record number [] int64, serialized [] string).

    Raises:
        ValueError: no records, a negative `start_record`, lengths that differ.
    """
    total = sum(records_per_shard)
    if len(shards) != len(records_per_shard) or total < 1 or start_record < 0:
        raise ValueError(
            f"Cannot read {total} records of {len(records_per_shard)} shards in {len(shards)} "
            f"files from record {start_record}: there must be one count per file, at least one "
            "record in all, and a start_record of at least 0."
        )
    window_count = -(-len(shards) // cycle_length)
    bounds = np.arange(window_count + 1) * len(shards) // window_count
    first_window, skip = _locate(records_per_shard, seed, start_record, bounds)
    plan = _Plan(
        paths=tf.constant(list(shards)),
        counts=tf.constant(list(records_per_shard), tf.int64),
        bounds=tf.constant(bounds, tf.int64),
        seed=seed,
        shuffle_buffer=shuffle_buffer or default_shuffle_buffer(shards, records_per_shard),
        first_window=first_window,
        skip=skip,
        whole_files=whole_files,
    )
    windows = tf.data.Dataset.range(first_window, np.iinfo(np.int64).max)
    records = windows.flat_map(lambda window: _read_window(plan, window))
    return records.prefetch(READ_AHEAD_RECORDS)


class _Plan(NamedTuple):
    """The constants for reading every window of `read_shuffled`."""

    paths: Tensor  # [shards] string
    counts: Tensor  # [shards] int64, records
    bounds: Tensor  # [windows + 1] int64; window w has the shards bounds[w]..bounds[w + 1] - 1
    seed: int
    shuffle_buffer: int  # records
    first_window: int  # counted over all epochs
    skip: int  # records of the first window that were consumed before
    whole_files: bool


def _read_window(plan: _Plan, number: Tensor) -> tf.data.Dataset:
    """Reads window `number`, [] int64, counted over all epochs."""
    window_count = plan.bounds.shape[0] - 1
    epoch, window = number // window_count, number % window_count
    order = _shard_order(plan.seed, epoch, plan.paths.shape[0])
    epochs = tf.data.Dataset.from_tensors(epoch).repeat()

    def read_counted(index: Tensor) -> tf.data.Dataset:
        # Zipped, because a map that attaches the epoch would cost a function call per record.
        records = tf.data.TFRecordDataset(plan.paths[index])
        records = records if plan.whole_files else records.take(plan.counts[index])
        columns = (epochs, _record_numbers(index), records)
        counted = tf.data.experimental.assert_cardinality(plan.counts[index])
        return tf.data.Dataset.zip(columns).apply(counted)

    chosen = order[plan.bounds[window] : plan.bounds[window + 1]]
    records = tf.data.Dataset.from_tensor_slices(chosen).interleave(
        read_counted,
        cycle_length=plan.paths.shape[0],  # no less than the window: all its files in turn
        block_length=1,
        num_parallel_calls=plan.paths.shape[0],  # waiting for a bucket, not for a core
        deterministic=True,
    )
    window_seed = tf.random.fold_in(_epoch_seed(plan.seed, epoch), window)
    shuffled = _shuffle(records, plan.shuffle_buffer, window_seed)
    skip = tf.where(number == plan.first_window, tf.constant(plan.skip, tf.int64), 0)
    return shuffled.skip(skip)


def _shuffle(dataset: tf.data.Dataset, buffer_size: int, seed: Tensor) -> tf.data.Dataset:
    """Shuffles as `Dataset.shuffle` does, but by `seed`, [2] int64, alone.

    That method mixes the process's global seed into its own, so the same run would read another
    order after an unrelated `tf.random.set_seed`. Permuting blocks by stateless numbers would not
    need this op, but copies every record: 0.2 ms for 125 KB.
    """
    # Positive, because two zeros would mean "draw a seed".
    seeds = tf.random.stateless_uniform(
        [2], seed, minval=1, maxval=2**62, dtype=tf.int64, alg="philox"
    )
    specs = tf.nest.flatten(dataset.element_spec)
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=buffer_size,
        seed=seeds[0],
        seed2=seeds[1],
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def _locate(
    records_per_shard: Sequence[int], seed: int, start_record: int, bounds: np.ndarray
) -> tuple[int, int]:
    """Returns the window, counted over all epochs, of `start_record`, and its index in it."""
    epoch, rest = divmod(start_record, sum(records_per_shard))
    order = _shard_order(seed, epoch, len(records_per_shard)).numpy()
    ends = np.cumsum(np.asarray(records_per_shard)[order])[bounds[1:] - 1]
    window = int(np.searchsorted(ends, rest, side="right"))
    before = int(ends[window - 1]) if window else 0
    return epoch * (len(bounds) - 1) + window, rest - before


def _read_shard(index: Tensor, path: Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.zip((_record_numbers(index), tf.data.TFRecordDataset(path)))


def _record_numbers(index: Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.range(index * RECORDS_PER_SHARD_LIMIT, np.iinfo(np.int64).max)


def _shard_order(seed: int, epoch: Tensor | int, count: int) -> Tensor:
    return _permutation(_epoch_seed(seed, epoch), count)


def _epoch_seed(seed: int, epoch: Tensor | int) -> Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])


def _permutation(seed: Tensor, count: Tensor | int) -> Tensor:
    """Returns 0..count-1, int64, in an order fixed by `seed`, [2] int64."""
    keys = tf.random.stateless_uniform(
        [count], seed, minval=0, maxval=2**62, dtype=tf.int64, alg="philox"
    )
    return tf.cast(tf.argsort(keys, stable=True), tf.int64)


def _count_in_file(path: str) -> int:
    """Counts length-prefixed records: 8 bytes length, 4 its checksum, payload, 4 its checksum."""
    size = storage.stat(path).size
    count = position = 0
    with storage.open_file(path, "rb") as file:
        while position + 12 <= size:
            file.seek(position)
            (length,) = struct.unpack("<Q", file.read(8))
            position += 12 + length + 4
            count += 1
    if position != size:
        raise UserError(
            f"{path} ends in the middle of a record ({size} bytes, record {count - 1} would end "
            f"at {position}). Remove it and write it again."
        )
    return count
