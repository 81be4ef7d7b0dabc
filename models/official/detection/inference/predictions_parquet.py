"""Predictions as Parquet: one row per image, a row group per block."""

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tpudet.detection.inference.predictions import (
    FORMAT,
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
)
from tpudet.detection.inference.predictions_limits import require_plausible_size
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.parquet_pages import decoded_size, require_own_bytes, text_size

_SCHEMA = pa.schema(
    [
        pa.field("image_id", pa.string(), nullable=False),
        pa.field("labels", pa.list_(pa.int32()), nullable=False),
        pa.field("scores", pa.list_(pa.float32()), nullable=False),
        pa.field("boxes_normalized", pa.list_(pa.list_(pa.float32(), 4)), nullable=False),
    ]
)
_MASKS = pa.field(
    "masks", pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.string())]))
)  # COCO RLE


def open_parquet(file: IO[bytes]) -> StoredPredictions:
    """Reads the metadata of a file; raises a PredictionsError if it is of another kind."""
    # Arrow's threads must not hold a Python file: one that lets it go while the interpreter ends
    # is killed inside a C++ destructor, which aborts the process.
    readable = _ReadOnly(file)
    opened = pa.PythonFile(readable, "r")
    metadata = pq.read_metadata(opened)
    stored = {k.decode(): v.decode() for k, v in (metadata.metadata or {}).items()}
    if stored.get("tpudet.format") != FORMAT:
        raise PredictionsError(f"its metadata does not say {FORMAT!r}")
    schema = metadata.schema.to_arrow_schema()
    if not schema.equals(_SCHEMA) and not schema.equals(_SCHEMA.append(_MASKS)):
        raise PredictionsError(f"its columns are {schema.names}: not {_SCHEMA}")
    missing = [name for name in ("tpudet.classes", "tpudet.metadata") if name not in stored]
    if missing:
        raise PredictionsError(f"its metadata has no {' and no '.join(missing)}")
    num_bytes = readable.seek(0, io.SEEK_END)
    require_plausible_size(_least_size(metadata), num_bytes)
    require_own_bytes(metadata, num_bytes)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    # Texts are read as dictionaries, so that one that the file has once is in memory once.
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    source = pq.ParquetFile(opened, metadata=metadata, pre_buffer=False, read_dictionary=texts)
    return StoredPredictions(
        stored["tpudet.classes"],
        parse_json(stored["tpudet.metadata"]),
        metadata.num_rows,
        lambda: _read_ids(source, file, num_bytes),
        lambda: _read_blocks(source, file, num_bytes),
    )


def _least_size(metadata: pq.FileMetaData) -> int:
    """The bytes of all pages and numbers, of which a string of a dictionary counts once."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [group.column(j) for group in groups for j in range(metadata.num_columns)]
    return sum(max(column.total_uncompressed_size, 4 * column.num_values) for column in columns)


def _read_ids(source: pq.ParquetFile, file: IO[bytes], num_bytes: int) -> list[str]:
    groups = [source.metadata.row_group(i) for i in range(source.num_row_groups)]
    require_plausible_size(sum(decoded_size(file, group, 0) for group in groups), num_bytes)
    column = source.read(["image_id"], use_threads=False).column("image_id")
    require_plausible_size(sum(map(text_size, column.chunks)), num_bytes)
    return column.to_pylist()


def _read_blocks(
    source: pq.ParquetFile, file: IO[bytes], num_bytes: int
) -> Iterator[Sequence[ImagePredictions]]:
    pages = total = 0
    for number in range(source.num_row_groups):
        group = source.metadata.row_group(number)
        pages += sum(decoded_size(file, group, i) for i in range(group.num_columns))
        require_plausible_size(pages, num_bytes)
        batches = source.read_row_group(number, use_threads=False).to_batches()
        for batch in batches:
            total += text_size(batch.column("image_id"))
            if _MASKS.name in batch.schema.names:
                total += text_size(batch.column(_MASKS.name).flatten().field("counts"))
        require_plausible_size(total, num_bytes)
        yield [image for batch in batches for image in _from_batch(batch)]


def write_parquet(
    file: IO[bytes], blocks: Iterable[Sequence[ImagePredictions]], keys: Mapping[str, str]
) -> int:
    """Writes blocks of images, with `keys` in the metadata; returns the number of images."""
    with_masks, blocks = _peek_masks(blocks)
    schema = _SCHEMA.append(_MASKS) if with_masks else _SCHEMA
    schema = schema.with_metadata({f"tpudet.{k}": v for k, v in keys.items()})
    count = 0
    with pq.ParquetWriter(pa.PythonFile(_WriteOnly(file), "w"), schema) as writer:
        for block in blocks:
            writer.write_table(_to_table(block, schema))
            count += len(block)
    return count


class _WriteOnly(io.RawIOBase):
    """The file methods that pyarrow needs; files in buckets lack `closed` and `writable`."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # the buffer protocol has no name before Python 3.12
        self._file.write(bytes(data))
        return len(data)


class _ReadOnly(io.RawIOBase):
    """As `_WriteOnly`, for reading at any position."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()


def _to_table(images: Sequence[ImagePredictions], schema: pa.Schema) -> pa.Table:
    ends = np.cumsum([0, *(len(image.labels) for image in images)]).astype(np.int32)
    boxes = np.concatenate([np.zeros((0, 4)), *(image.boxes_normalized for image in images)])
    labels = np.concatenate([np.zeros(0), *(image.labels for image in images)])
    scores = np.concatenate([np.zeros(0), *(image.scores for image in images)])
    rows = pa.FixedSizeListArray.from_arrays(pa.array(boxes.ravel(), pa.float32()), 4)
    columns = [
        pa.array([image.image_id for image in images], pa.string()),
        pa.ListArray.from_arrays(ends, pa.array(labels.astype(np.int32))),
        pa.ListArray.from_arrays(ends, pa.array(scores.astype(np.float32))),
        pa.ListArray.from_arrays(ends, rows),
    ]
    if _MASKS.name in schema.names:
        columns.append(pa.array([image.masks for image in images], _MASKS.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _from_batch(batch: pa.RecordBatch) -> Iterator[ImagePredictions]:
    ids = batch.column("image_id").to_pylist()
    _require_equal_lengths(batch, ids)
    ends = batch.column("labels").offsets.to_numpy()
    labels, scores = (batch.column(name).flatten().to_numpy() for name in ("labels", "scores"))
    boxes = batch.column("boxes_normalized").flatten().flatten().to_numpy().reshape(-1, 4)
    masks = [None] * len(ids)
    if _MASKS.name in batch.schema.names:
        masks = batch.column(_MASKS.name).to_pylist()
    ends = ends - ends[0]
    for image_id, start, stop, rles in zip(ids, ends[:-1], ends[1:], masks, strict=True):
        part = slice(start, stop)
        yield ImagePredictions(image_id, labels[part], scores[part], boxes[part], rles)


def _require_equal_lengths(batch: pa.RecordBatch, ids: Sequence[str]) -> None:
    """Refuses an image whose lists differ, of which every later one would get wrong numbers."""
    columns = ("labels", "scores", "boxes_normalized")
    counts = np.array([np.diff(batch.column(name).offsets) for name in columns])  # [3, rows]
    unequal = np.flatnonzero((counts != counts[0]).any(axis=0))
    if len(unequal):
        n = counts[:, unequal[0]]
        raise PredictionsError(
            f"image {ids[unequal[0]]!r} has {n[0]} labels, {n[1]} scores and {n[2]} boxes"
        )


def _peek_masks(
    blocks: Iterable[Sequence[ImagePredictions]],
) -> tuple[bool, Iterator[Sequence[ImagePredictions]]]:
    """Whether the first image has masks, and the blocks again."""
    rest = iter(blocks)
    first = []
    for block in rest:
        first.append(block)
        if block:
            break
    with_masks = bool(first and first[-1]) and first[-1][0].masks is not None
    return with_masks, itertools.chain(first, rest)
