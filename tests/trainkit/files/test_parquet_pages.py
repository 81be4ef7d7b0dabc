"""Headers of Parquet's pages that make reading them long."""

import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tpudet.trainkit.files.parquet_pages import decoded_size, require_own_bytes


def written(values: Sequence | np.ndarray, **options) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": values}), file, compression="none", **options)
    return file.getvalue()


def size_of(content: bytes) -> int:
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    return decoded_size(io.BytesIO(content), group, 0)


class CountingFile(io.BytesIO):
    num_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.num_read += len(content)
        return content


def test_little_is_read_for_each_page() -> None:
    values = np.arange(50_000.0)
    content = written(values, use_dictionary=False, data_page_size=1000, write_batch_size=100)
    file = CountingFile(content)
    group = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    assert decoded_size(file, group, 0) >= values.nbytes
    assert file.num_read < len(content)  # headers of 64 KB would be 30 times as much


def test_headers_with_long_statistics_are_read() -> None:
    texts = ["a" * 4_000 + str(number) for number in range(20)]
    assert size_of(written(texts, data_page_version="1.0", use_dictionary=False)) > 80_000


def test_pages_without_a_kind_are_refused() -> None:
    """Five bytes each, which add nothing to the size of a file."""
    content = bytearray(written(np.arange(10_000.0), use_dictionary=False))
    column = pq.read_metadata(pa.BufferReader(bytes(content))).row_group(0).column(0)
    start, length = column.data_page_offset, column.total_compressed_size // 5 * 5
    content[start : start + length] = b"\x25\0\x15\0\0" * (length // 5)
    with pytest.raises(pa.ArrowInvalid, match=r"the page at byte 4 has no kind or no sizes"):
        size_of(bytes(content))


def test_pages_without_values_count() -> None:
    """In Thrift: of kind 0, empty, of 0 values; 17 bytes."""
    page = b"\x15\0\x15\0\x15\0\x2c\x15\0\x15\0\x15\0\x15\0\0\0"
    column = SimpleNamespace(
        num_values=1,
        has_dictionary_page=False,
        data_page_offset=0,
        total_compressed_size=100 * len(page),
    )
    group: Any = SimpleNamespace(column=lambda number: column)
    assert decoded_size(io.BytesIO(page * 100), group, 0) == 6400


def test_row_groups_of_the_same_bytes_are_refused() -> None:
    content = written(np.arange(10_000.0), use_dictionary=False)
    metadata = pq.read_metadata(pa.BufferReader(content))
    require_own_bytes(metadata, len(content))
    metadata.append_row_groups(pq.read_metadata(pa.BufferReader(content)))
    with pytest.raises(pa.ArrowInvalid, match=r"its columns have 160,[0-9,]+ bytes, the file 80,"):
        require_own_bytes(metadata, len(content))
