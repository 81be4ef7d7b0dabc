"""How much memory Parquet takes: by the headers of its pages, and by texts that it has once.

The footer counts values too, but Arrow does not compare them: a page of a few bytes may hold
hundreds of millions of equal ones. Headers are structs in Thrift's compact protocol
(https://parquet.apache.org/docs/file-format/, Thrift's thrift-compact-protocol.md).
"""

from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tpudet.trainkit.files.varints import read_varint

_MAX_HEADER = 1 << 16  # bytes; the smallest and largest value of a page are in it
_USUAL_HEADER = 512  # bytes; nearly all headers are shorter
_MAX_DEPTH = 4
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3  # fields of a header
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8  # likewise, structs whose first field counts the values
_VALUE_BYTES = 4  # of the smallest type, with its levels
_PAGE_BYTES = 64  # of a page without values


def require_own_bytes(metadata: pq.FileMetaData, num_bytes: int) -> None:
    """Refuses columns that share their bytes, each of which would be read as often as it is named.

    Args:
        metadata: of the file.
        num_bytes: its size.

    Raises:
        pa.ArrowInvalid: all columns together are longer than the file.
    """
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(group.num_columns)]
    total = sum(max(column.total_compressed_size, 0) for column in columns)
    if total > num_bytes:
        raise pa.ArrowInvalid(f"its columns have {total:,} bytes, the file {num_bytes:,}")


def decoded_size(file: IO[bytes], group: pq.RowGroupMetaData, column: int) -> int:
    """The bytes that a column of a row group takes in memory at least, by its pages.

    Args:
        file: the Parquet file, of which the headers are read.
        group: its row group.
        column: the leaf column.

    Raises:
        pa.ArrowInvalid: a header is damaged.
    """
    chunk = group.column(column)
    if not chunk.num_values:  # no page is read, and the first may have no place
        return 0
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    if start < 0:
        raise pa.ArrowInvalid(f"a column begins at byte {start:,}")
    end, total = start + chunk.total_compressed_size, 0
    while start < end:
        header, length = _read_header(file, start, end)
        size, compressed = header.get(_UNCOMPRESSED_SIZE, -1), header.get(_COMPRESSED_SIZE, -1)
        kinds = [header[kind] for kind in (_DATA, _DICTIONARY, _DATA_V2) if kind in header]
        counts = [kind.get(1, -1) if isinstance(kind, dict) else -1 for kind in kinds]
        numbers = (size, compressed, *counts)
        if not kinds or not all(type(number) is int and number >= 0 for number in numbers):
            raise pa.ArrowInvalid(f"the page at byte {start:,} has no kind or no sizes")
        total += max(size, _VALUE_BYTES * sum(counts), _PAGE_BYTES)
        start += length + compressed
    return total


def text_size(column: pa.DictionaryArray) -> int:
    """The letters of a column whose equal texts are stored once."""
    lengths = pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False)
    places = column.indices.drop_null().to_numpy()
    return int(lengths[places].sum(dtype=np.int64))


def _read_header(file: IO[bytes], start: int, end: int) -> tuple[dict[int, Any], int]:
    """Returns the fields of the header of a page by their numbers, and its length in bytes."""
    file.seek(start)
    content = file.read(min(_USUAL_HEADER, end - start))
    try:
        return _read_struct(content, 0, 0)
    except (IndexError, ValueError):
        content += file.read(min(_MAX_HEADER, end - start) - len(content))
    try:
        return _read_struct(content, 0, 0)
    except (IndexError, ValueError) as error:
        raise pa.ArrowInvalid("the header of a page is cut off or not valid") from error


def _read_struct(content: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while kind := content[place] & 0xF:
        step = content[place] >> 4
        place += 1
        if step:
            number += step
        else:
            number, place = _read_integer(content, place)
        if kind in (1, 2):  # true, false
            fields[number] = kind == 1
        elif kind in (4, 5, 6):  # integers of 16, 32 and 64 bits
            fields[number], place = _read_integer(content, place)
        elif kind == 8:  # bytes
            length, place = read_varint(content, place)
            place += length
        elif kind == 12 and depth < _MAX_DEPTH:
            fields[number], place = _read_struct(content, place, depth + 1)
        else:
            raise ValueError(f"type {kind}")
    return fields, place + 1


def _read_integer(content: bytes, place: int) -> tuple[int, int]:
    number, place = read_varint(content, place)
    return (number >> 1) ^ -(number & 1), place
