"""Sharded TFRecord files: atomic writing, exact listing, reading in file order.

The files of one set are named `<prefix>-00000-of-00020.tfrecord`. A record's number is
`shard index * RECORDS_PER_SHARD_LIMIT + index in the shard`, an int64. Beside each file that is
written here stands its index, `<file>.offsets`: where each record begins, and where the last one
ends, int64 with the lowest byte first. Files of other programs have none; their records are found
by reading the length of each.
"""

import contextlib
import logging
import math
import os
import re
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf
from crc32c import crc32c

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_numbers import RECORDS_PER_SHARD_LIMIT
from tpudet.trainkit.types import Tensor

Record = bytes | Sequence[bytes]

logger = logging.getLogger(__name__)

INDEX_ENDING = ".offsets"

# For functions that datasets trace: AutoGraph would take 2 s per start to convert what needs none.
unconverted = tf.autograph.experimental.do_not_convert

FRAME_BYTES = 16  # of a record: length, checksum of the length, checksum of the data
_BUCKET_READERS = 16
_BYTES_BEFORE = 12  # of them: the length and its checksum


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

    Its index is written after it.

    Args:
        path: the final name.
        records: serialized, whole or in pieces, which saves the copy that would join them.

    Returns:
        The number of records written.
    """
    offsets = [0]
    storage.remove_if_there(path + INDEX_ENDING)  # of a file that this one replaces
    with storage.whole_file(path, "wb") as file:
        for record in records:
            pieces = (record,) if isinstance(record, bytes) else record
            offsets.append(offsets[-1] + _write_record(file, pieces))
    with storage.whole_file(path + INDEX_ENDING, "wb") as file:
        file.write(np.array(offsets, "<i8").tobytes())
    return len(offsets) - 1


def _write_record(file: Any, pieces: Sequence[bytes]) -> int:
    """Writes length, its checksum, the pieces and their checksum, as tf.io.TFRecordWriter does.

    Returns the number of bytes written.

    That writer takes only whole records, and its checksum takes as long as the writing itself.
    """
    num_bytes = sum(map(len, pieces))
    length = struct.pack("<Q", num_bytes)
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
    first, *others = pieces
    file.write(length + _masked(crc32c(length)) + first)
    for piece in others[:-1]:
        file.write(piece)
    file.write(b"".join((*others[-1:], _masked(checksum))))
    return num_bytes + FRAME_BYTES


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
    """Counts the records of each shard, without parsing them.

    Raises:
        UserError: a file ends in the middle of a record.
    """
    return [len(offsets) - 1 for offsets in all_record_offsets(shards)]


def all_record_offsets(shards: Sequence[str]) -> list[np.ndarray]:
    """As `record_offsets`, of each shard; many at once in a bucket, where each takes a while."""
    if not any(map(storage.is_remote, shards)):
        return [record_offsets(path) for path in shards]
    with ThreadPoolExecutor(_BUCKET_READERS, "offsets") as pool:
        return list(pool.map(record_offsets, shards))


def record_offsets(path: str) -> np.ndarray:
    """Returns where each record of a file begins, and the file's size: [records + 1] int64, bytes.

    Raises:
        UserError: the file ends in the middle of a record.
    """
    size = storage.stat(path).size
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        with storage.open_file(path + INDEX_ENDING, "rb") as file:
            stored = file.read()
        offsets = np.frombuffer(stored[: len(stored) // 8 * 8], "<i8").astype(np.int64)
        is_whole = len(stored) % 8 == 0 and len(offsets) > 0
        if is_whole and offsets[0] == 0 and offsets[-1] == size and _are_records(offsets):
            return offsets
        logger.warning(
            "%s is not the index of %s: the length of each record is read instead",
            path + INDEX_ENDING,
            path,
        )
    return _find_records(path, size)


def _are_records(offsets: np.ndarray) -> bool:
    return bool((np.diff(offsets) >= FRAME_BYTES).all())


def read_record(path: str, start: int, end: int) -> bytes:
    """Reads the record between two of `record_offsets`, and no other."""
    with storage.open_file(path, "rb") as file:
        file.seek(start + _BYTES_BEFORE)
        return file.read(end - start - FRAME_BYTES)


def read_records(shards: Sequence[str]) -> tf.data.Dataset:
    """Reads every record once, in file order.

    Returns:
        Dataset of (record number [] int64, serialized [] string).
    """
    indices = tf.range(len(shards), dtype=tf.int64)
    files: Any = tf.data.Dataset.from_tensor_slices((indices, list(shards)))
    return without_tuning(files.flat_map(unconverted(_read_shard)))


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset, and all that are made from it, without tf.data's tuner.

    It gained nothing, and its thread may hold up the end of an iterator for as long as that has
    lived, a minute at most: TensorFlow wakes the thread before it says that it is to end.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def with_input_options(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the batches that an experiment reads: in one order, and as `without_tuning`."""
    options = tf.data.Options()
    options.deterministic = True
    # Images are prepared in parallel; splitting one operation over threads would only add cost.
    options.threading.max_intra_op_parallelism = 1
    return without_tuning(batches.with_options(options))


def spread_records(
    records: tf.data.Dataset, *, num_records: int, max_records: int | None
) -> tuple[tf.data.Dataset, int]:
    """Returns some records of a split, spread evenly over it, and their number.

    Args:
        records: all of a split.
        num_records: of the split.
        max_records: how many are wanted at most; None: all.
    """
    if max_records is None or max_records >= num_records:
        return records, num_records

    def is_chosen(place: Tensor) -> Tensor:
        return (place + 1) * max_records // num_records > place * max_records // num_records

    numbered: Any = records.enumerate()
    chosen = numbered.filter(unconverted(lambda place, _: is_chosen(place)))
    return chosen.map(unconverted(lambda _, record: record)), max_records


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


def _read_shard(index: Tensor, path: Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.zip((_record_numbers(index), tf.data.TFRecordDataset(path)))


def _record_numbers(index: Tensor) -> tf.data.Dataset:
    return tf.data.Dataset.range(index * RECORDS_PER_SHARD_LIMIT, np.iinfo(np.int64).max)


def _find_records(path: str, size: int) -> np.ndarray:
    """Reads the length of each record: 8 bytes, 4 of its checksum, the data, 4 of its checksum."""
    offsets = [0]
    with storage.open_file(path, "rb") as file:
        while offsets[-1] + _BYTES_BEFORE <= size:
            file.seek(offsets[-1])
            (length,) = struct.unpack("<Q", file.read(8))
            offsets.append(offsets[-1] + length + FRAME_BYTES)
        if offsets[-1] == size:
            return np.array(offsets, np.int64)
        file.seek(0)
        is_compressed = file.read(4).startswith((b"\x1f\x8b\x08", b"\x78\x9c"))
    cause = "seems to be compressed by GZIP or ZLIB, which records must not be, or"
    raise UserError(
        f"{path} {f'{cause} ' * is_compressed}ends in the middle of a record ({size} bytes, record "
        f"{len(offsets) - 2} would end at {offsets[-1]}). Remove it and write it again."
    )
