"""Reads safetensors: a JSON header with the position of each tensor in the bytes after it."""

import math
import operator
from functools import partial
from typing import Any

import numpy as np

from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.weights.stored_weights import (
    BFLOAT16,
    ByteReader,
    LazyTensors,
    StoredWeights,
    WeightsError,
    is_possible_shape,
)

_LENGTH_BYTES = 8  # of the header's length, which comes first
# A quarter of what the format's own reader allows: parsed JSON takes up to 30 times its bytes.
_MAX_HEADER_BYTES = 25_000_000
_TYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def read_safetensors(path: str) -> StoredWeights:
    """Reads a .safetensors file.

    Raises:
        WeightsError: cut off, damaged, or with a type that NumPy does not have.
    """
    reader = ByteReader(path)
    length = int.from_bytes(reader.read(0, _LENGTH_BYTES), "little")
    if length > _MAX_HEADER_BYTES:
        raise WeightsError(f"{path} is not a safetensors file: its header would be {length} bytes.")
    try:
        header = dict(parse_json(reader.read(_LENGTH_BYTES, length)))
    except (ValueError, TypeError, RecursionError) as error:
        raise WeightsError(
            f"{path} is damaged: its header is not a JSON object ({error})."
        ) from error
    header.pop("__metadata__", None)
    start = _LENGTH_BYTES + length
    places = {name: _checked(reader, start, name, entry) for name, entry in header.items()}
    _require_no_gaps(reader, start, places)
    tensors = {name: partial(_read_tensor, reader, start, *place) for name, place in places.items()}
    return StoredWeights(LazyTensors(tensors), "safetensors")


def _require_no_gaps(
    reader: ByteReader, start: int, places: dict[str, tuple[np.dtype, tuple[int, ...], int]]
) -> None:
    """Every byte after the header must belong to exactly one tensor."""
    end = 0
    for name, (dtype, shape, first) in sorted(places.items(), key=lambda place: place[1][2]):
        size = math.prod(shape) * dtype.itemsize
        if first != end and size:
            raise WeightsError(
                f"{reader.path} is damaged: {name} begins at byte {first}, where the tensor before "
                f"it ends at {end}."
            )
        end += size
    if start + end != reader.size:
        raise WeightsError(
            f"{reader.path} is damaged: {reader.size - start - end} of its bytes are no tensor's."
        )


def _checked(
    reader: ByteReader, start: int, name: str, entry: Any
) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and first byte of a tensor, whose bytes are there."""
    try:
        kind, shape, (first, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        counts = [operator.index(count) for count in (first, end, *shape)]
        is_known = kind in _TYPES
    except (TypeError, KeyError, ValueError) as error:
        raise WeightsError(f"{reader.path} is damaged: {name} is described by {entry}.") from error
    if not is_known:
        raise WeightsError(
            f"{reader.path}: {name} is of type {kind}; read are {', '.join(_TYPES)}. Store it as "
            "one of these."
        )
    is_possible = min(counts) >= 0 and is_possible_shape(shape)
    if not is_possible or end - first != math.prod(shape) * _TYPES[kind].itemsize:
        raise WeightsError(
            f"{reader.path} is damaged: {name}, {kind} of shape {list(shape)}, cannot lie in bytes "
            f"{first} to {end}."
        )
    reader.read(start + end, 0)
    return _TYPES[kind], shape, first


def _read_tensor(
    reader: ByteReader, start: int, dtype: np.dtype, shape: tuple[int, ...], first: int
) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(reader.read(start + first, size), dtype).reshape(shape)
