"""Checks the index of a TensorFlow bundle: TensorFlow aborts the process on a corrupt one.

The index is a table of LevelDB's format: blocks of sorted keys, of which each leaves out what it
has in common with the one before, and a block of where the blocks are. Values are protocol buffers.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.varints import read_varint
from tpudet.trainkit.weights.stored_weights import is_inflated, is_possible_shape

_MAGIC = bytes.fromhex("57fb808b247547db")
_FOOTER_BYTES = 48
_MAX_INDEX_BYTES = 1 << 28  # a checkpoint of 1,000 tensors has 100 KB
_MAX_VARINT_BYTES = 10
_CHECKSUM_BYTES = 4  # behind the lengths of strings
_TEXT_BYTES = 24  # of TensorFlow's strings, beside their letters


class DamagedIndexError(ValueError):
    """The index contradicts itself, or what it describes is far larger than the bundle."""


def check_index(prefix: str, index_path: str) -> None:
    """Refuses an index by which TensorFlow would abort or reserve far more memory than is stored.

    Args:
        prefix: of the bundle, local or in a bucket.
        index_path: its index.

    Raises:
        DamagedIndexError: it does.
        OSError: it cannot be read.
    """
    from tensorflow.core.framework import types_pb2  # late, and imported already
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

    if storage.stat(index_path).size > _MAX_INDEX_BYTES:
        raise DamagedIndexError(f"it is larger than {_MAX_INDEX_BYTES:,} bytes")
    with storage.open_bytes(index_path) as file:
        data = file.read()
    try:
        stored = dict(read_entries(data))
        header = BundleHeaderProto.FromString(stored.pop(b""))
        entries = [BundleEntryProto.FromString(value) for value in stored.values()]
        sizes = [_size(entry) for entry in entries]
        names = {
            shard: f"{prefix}.data-{shard:05d}-of-{header.num_shards:05d}"
            for shard in {entry.shard_id for entry in entries if entry.size}
        }
        paths = {shard: name for shard, name in names.items() if storage.is_file(name)}
        num_bytes = sum(storage.stat(name).size for name in paths.values())
        if is_inflated(sum(sizes), num_bytes):
            raise DamagedIndexError(
                f"its tensors have {sum(sizes):,} bytes, of {num_bytes:,} stored"
            )
        for entry in entries:
            if entry.dtype == types_pb2.DT_STRING and entry.shard_id in paths:
                _check_texts(entry, paths[entry.shard_id])
    except (DamagedIndexError, OSError, MemoryError):
        raise
    except Exception as error:  # damaged bytes fail in many ways
        raise DamagedIndexError(f"it is damaged: {error!r}") from error


def _check_texts(entry: Any, path: str) -> None:
    """Refuses strings of more letters than they have room for; their lengths come first."""
    count = math.prod(dim.size for dim in entry.shape.dim)
    with storage.open_bytes(path) as file:
        file.seek(entry.offset)
        data = file.read(min(entry.size, _MAX_VARINT_BYTES * count))
    offset = num_letters = 0
    for _ in range(count):
        length, offset = read_varint(data, offset)
        num_letters += length
    if count and offset + _CHECKSUM_BYTES + num_letters != entry.size:
        raise DamagedIndexError(
            f"it has strings of {num_letters:,} letters in {entry.size:,} bytes"
        )


def _size(entry: Any) -> int:
    """The bytes that a tensor will take in memory."""
    import tensorflow as tf  # late, and imported already

    shape = tuple(dim.size for dim in entry.shape.dim)
    if entry.shape.unknown_rank or min(shape, default=0) < 0 or not is_possible_shape(shape):
        raise DamagedIndexError(f"it has a tensor of shape {list(shape[:9])}")
    if min(entry.size, entry.offset, entry.shard_id) < 0:
        raise DamagedIndexError("it has a tensor of a negative size or place")
    extents = [extent for part in entry.slices for extent in part.extent]
    if any(len(part.extent) != len(shape) for part in entry.slices) or any(
        not 0 <= extent.start <= extent.start + extent.length <= size
        for extent, size in zip(extents, itertools.cycle(shape), strict=False)
    ):
        raise DamagedIndexError(
            f"it has a part that lies outside its tensor of shape {list(shape)}"
        )
    count, kind = math.prod(shape), tf.dtypes.as_dtype(entry.dtype)
    if kind == tf.string:
        if count > entry.size:  # each has a length of a byte at least
            raise DamagedIndexError(f"it has {count:,} texts in {entry.size:,} bytes")
        return _TEXT_BYTES * count + entry.size
    if kind in (tf.variant, tf.resource):
        return entry.size
    if not entry.slices and count * kind.size != entry.size:
        raise DamagedIndexError(f"it has {kind.name} of shape {list(shape)} in {entry.size} bytes")
    return count * kind.size


def read_entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a table, sorted by key.

    Raises:
        DamagedIndexError: it is not a table, is compressed, or can be read in two ways.
        IndexError: it is cut off.
        ValueError: a number in it is too long.
    """
    if data[-8:] != _MAGIC:
        raise DamagedIndexError("it is cut off, or not an index of TensorFlow")
    offset = len(data) - _FOOTER_BYTES
    for _ in range(2):  # where the properties of the table are
        _, offset = read_varint(data, offset)
    last: bytes | None = None
    for _, handle in _read_block(data, *_handle(data, offset)):
        for key, value in _read_block(data, *_handle(handle, 0)):
            if last is not None and key <= last:
                raise DamagedIndexError("its keys do not rise")
            last = key
            yield key, value


def _handle(data: bytes, offset: int) -> tuple[int, int]:
    """Reads where a block is: its offset and its size."""
    block_offset, offset = read_varint(data, offset)
    return block_offset, read_varint(data, offset)[0]


def _read_block(data: bytes, block_offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block whose every restart, for searches, is one of them."""
    block = data[block_offset : block_offset + size]
    if len(block) < size or data[block_offset + size] != 0:
        raise DamagedIndexError("it is cut off or compressed")
    num_restarts = int.from_bytes(block[-4:], "little")
    end = size - 4 - 4 * num_restarts
    if num_restarts < 1 or end < 0:
        raise DamagedIndexError("a block of it is damaged")
    restarts = {int.from_bytes(block[k : k + 4], "little") for k in range(end, size - 4, 4)}
    key, offset = b"", 0
    while offset < end:
        start = offset
        shared, offset = read_varint(block, offset)
        own, offset = read_varint(block, offset)
        length, offset = read_varint(block, offset)
        if shared > (0 if start in restarts else len(key)) or offset + own + length > end:
            raise DamagedIndexError("a block of it is damaged")
        restarts.discard(start)
        key = key[:shared] + block[offset : offset + own]
        offset += own
        yield key, block[offset : offset + length]
        offset += length
    if restarts - {0}:  # an empty block has one at its start
        raise DamagedIndexError("a block of it can be read in two ways")
