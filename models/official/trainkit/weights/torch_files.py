"""Reads PyTorch files, in the old format and the zip format, without PyTorch."""

import io
import zipfile
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from tpudet.trainkit.weights.stored_weights import (
    ByteReader,
    LazyTensors,
    StoredWeights,
    WeightsError,
    read_member,
    require_no_growth,
)
from tpudet.trainkit.weights.torch_pickle import Storage, Tensor, choose_tensors, load_pickle

_MAGIC = 0x1950A86A20F9469CFC6C
# The old format begins with the pickle of that number, as torch.save writes it.
OLD_FORMAT_START = b"\x80\x02\x8a\x0a" + _MAGIC.to_bytes(10, "little")
_SPARE_PICKLE_BYTES = 1 << 20  # a byte of a pickle may become an object of 100
_LENGTH_BYTES = 8  # before each storage of the old format


def read_old_torch(path: str, *, prefer_averages: bool) -> StoredWeights:
    """Reads the format of `torch.save` before 1.6: pickles, then the storages in sequence.

    Raises:
        WeightsError: cut off, damaged, or with more in it than tensors and plain containers.
    """
    reader = ByteReader(path)
    _magic, _version, (machine, _) = [load_pickle(reader.file, path) for _ in range(3)]
    if isinstance(machine, Mapping) and not machine.get("little_endian", True):
        raise _big_endian(path)
    content, storages = load_pickle(reader.file, path)
    keys, _ = load_pickle(reader.file, path)
    offsets = _storage_offsets(reader, keys, storages)

    def read(key: str) -> bytes:
        return reader.read(offsets[key], storages[key].length * storages[key].dtype.itemsize)

    tensors, notes = choose_tensors(content, path, prefer_averages=prefer_averages)
    require_no_growth(sum(tensor.num_bytes for tensor in tensors.values()), path)
    return _stored(tensors, read, "PyTorch, old format", notes)


def _storage_offsets(
    reader: ByteReader, keys: Any, storages: Mapping[str, Storage]
) -> dict[str, int]:
    """The offset of each storage's numbers; the last one must end within the file."""
    if not isinstance(keys, list) or set(keys) != set(storages):
        raise WeightsError(f"{reader.path} is damaged: its storages do not match its tensors.")
    offsets, offset = {}, reader.file.tell()
    for key in keys:
        length = int.from_bytes(reader.read(offset, _LENGTH_BYTES), "little")
        if length != storages[key].length:
            raise WeightsError(
                f"{reader.path} is damaged: a storage has {length} numbers instead of "
                f"{storages[key].length}. Fetch it again."
            )
        offsets[key] = offset + _LENGTH_BYTES
        offset = offsets[key] + length * storages[key].dtype.itemsize
    reader.read(offset, 0)
    return offsets


def read_torch_zip(archive: zipfile.ZipFile, path: str, *, prefer_averages: bool) -> StoredWeights:
    """Reads the format of `torch.save` since 1.6: a zip with a pickle and a file per storage.

    Raises:
        WeightsError: damaged, or with more in it than tensors and plain containers.
    """
    names = archive.namelist()
    root = next(name for name in names if is_torch_pickle(name)).removesuffix("data.pkl")
    if f"{root}byteorder" in names and read_member(archive, f"{root}byteorder", path) == b"big":
        raise _big_endian(path)
    pickled = read_member(archive, f"{root}data.pkl", path, spare=_SPARE_PICKLE_BYTES)
    content, storages = load_pickle(io.BytesIO(pickled), path)

    def read(key: str) -> bytes:
        data = read_member(archive, f"{root}data/{key}", path)
        if len(data) != storages[key].length * storages[key].dtype.itemsize:
            raise WeightsError(f"{path} is damaged: {root}data/{key} has {len(data)} bytes.")
        return data

    tensors, notes = choose_tensors(content, path, prefer_averages=prefer_averages)
    require_no_growth(sum(tensor.num_bytes for tensor in tensors.values()), path)
    return _stored(tensors, read, "PyTorch, zip format", notes)


def is_torch_pickle(name: str) -> bool:
    """Whether a member of a zip is the pickle that makes it a PyTorch file."""
    return name.count("/") == 1 and name.endswith("/data.pkl")


def _stored(
    tensors: Mapping[str, Tensor], read: Callable[[str], bytes], format: str, notes: list[str]
) -> StoredWeights:
    read_once = lru_cache(maxsize=1)(read)  # neighbours may be views of one storage

    def tensor(description: Tensor) -> np.ndarray:
        storage = description.storage
        return description.of(np.frombuffer(read_once(storage.key), storage.dtype))

    readers = {name: partial(tensor, description) for name, description in tensors.items()}
    return StoredWeights(LazyTensors(readers), format, tuple(notes))


def _big_endian(path: str) -> WeightsError:
    return WeightsError(
        f"{path} was written on a big-endian machine, which is not supported. Store it again on an "
        "ordinary one."
    )
