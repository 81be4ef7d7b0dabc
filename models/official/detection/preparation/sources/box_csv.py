"""Box CSVs (Open Images: 13 columns, relative coordinates), read and written at full size.

The training boxes are 12.2 million rows, 1.4 GB of text. Files are read and written in pieces of a
few megabytes, so that no step holds a second copy of a table as text.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv
from tqdm import tqdm

from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.input_files import open_input
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import whole_file

ALL_COLUMNS = (
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
)
UNKNOWN = -1  # of a flag, as Open Images writes it
_CATEGORIES = ("ImageID", "Source", "LabelName")
_FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
_BLOCK_BYTES = 1 << 24
_BLOCK_ROWS = 1 << 16
_HEADER_BYTES = 1 << 16
PROGRESS_DELAY = 3.0  # seconds; what takes less needs no bar


def read_boxes(
    path: str, what: str = "--annotations", *, columns: Sequence[str] = ALL_COLUMNS
) -> pd.DataFrame:
    """Reads some columns of a box CSV, in whatever order the file has them.

    Args:
        path: the CSV, local or in a bucket.
        what: how the user named it, for messages.
        columns: of ALL_COLUMNS; exactly these are read, and must be there.

    Returns:
        One row a line, in the order of the file: ImageID, Source and LabelName as categoricals,
        whose categories are in order of first appearance (a blank Source or LabelName is NaN);
        flags as int8 (1, 0, and -1 where unknown or blank); Confidence and coordinates as float64,
        NaN where there is no number.

    Raises:
        PreparationError: the file is missing, empty, without rows, lacks a column, is no CSV, has
            a row without ImageID, or a flag other than 1, 0 and -1.
    """
    parts = []
    with _progress(path) as bar:
        for first_line, batch in _read_batches(path, what, columns, bar, include=columns):
            arrays = [_typed(path, what, first_line, name, batch.column(name)) for name in columns]
            parts.append(pa.RecordBatch.from_arrays(arrays, names=list(columns)))
    table = pa.Table.from_batches(parts).unify_dictionaries()
    return table.to_pandas(split_blocks=True, self_destruct=True)


def stream_boxes(
    path: str, what: str = "--annotations", *, required: Sequence[str] = ("ImageID",)
) -> Iterator[pa.RecordBatch]:
    """Reads a box CSV piece by piece, every column as the text that it is; blanks are "".

    Args:
        path: the CSV, local or in a bucket.
        what: how the user named it, for messages.
        required: columns that must be there; all others come too, whatever they are called.

    Raises:
        PreparationError: as `read_boxes`, when the first piece or the one at fault is asked for.
    """
    with _progress(path) as bar:
        for _, batch in _read_batches(path, what, required, bar, include=()):
            yield batch


def select_rows(batches: Iterable[pa.RecordBatch], rows: np.ndarray) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces of a file for which `rows`, [all rows] bool, is true, in order."""
    first = 0
    for batch in batches:
        yield batch.filter(pa.array(rows[first : first + batch.num_rows]))
        first += batch.num_rows


def write_boxes(path: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    r"""Writes a box CSV, whole or not at all; text goes out as it came in.

    Values are quoted only where CSV demands it; lines end with "\n". Numbers are written with as
    many digits as give them back.

    Args:
        path: local or in a bucket.
        batches: pieces with the same columns, at least one; the names of the first are the header.

    Returns:
        The number of rows.

    Raises:
        OSError: the file cannot be written; whatever `batches` raises. What was there
            stays.
    """
    num_rows = 0
    names: list[str] = []
    with whole_file(path, "wb") as file:
        for piece in batches:
            if not names:
                names = piece.schema.names
                file.write(_to_lines(pa.RecordBatch.from_pydict({name: [name] for name in names})))
            elif piece.schema.names != names:
                raise ValueError(f"Columns {piece.schema.names} after columns {names}.")
            table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
            for batch in table.to_batches(max_chunksize=_BLOCK_ROWS):
                file.write(_to_lines(batch))
                num_rows += batch.num_rows
        if not names:
            raise ValueError(f"There are no columns to write to {path}.")
    return num_rows


def parse_flags(path: str, what: str, first_line: int, name: str, texts: pa.Array) -> np.ndarray:
    """Flags from their text: 1, 0, and -1 for unknown or blank, as int8.

    Raises:
        PreparationError: another value, with its line.
    """
    try:
        numbers = texts.cast(pa.int8()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        numbers = pd.to_numeric(texts.to_pandas(), errors="coerce").to_numpy()
        blank = pc.equal(pc.ascii_trim_whitespace(texts), "").to_numpy(zero_copy_only=False)
        numbers = np.where(blank, UNKNOWN, numbers)
    wrong = np.flatnonzero(~np.isin(numbers, (UNKNOWN, 0, 1)))
    if wrong.size:
        row = int(wrong[0])
        raise PreparationError(
            f"{what} {path}: {name} of line {first_line + row} is '{texts[row].as_py()}'; it must "
            "be 1 (yes), 0 (no), or -1 or blank (unknown)."
        )
    return numbers.astype(np.int8, copy=False)


def _typed(path: str, what: str, first_line: int, name: str, texts: pa.Array) -> pa.Array:
    if name in _FLAGS:
        return pa.array(parse_flags(path, what, first_line, name, texts))
    if name in _CATEGORIES:
        trimmed = pc.ascii_trim_whitespace(texts)
        return pc.if_else(pc.equal(trimmed, ""), None, trimmed).dictionary_encode()
    if pc.any(pc.equal(texts, "")).as_py():
        texts = pc.if_else(pc.equal(texts, ""), None, texts)
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:  # what is not a number becomes NaN, which the box checks report
        return pa.array(pd.to_numeric(texts.to_pandas(), errors="coerce").to_numpy(np.float64))


def _read_batches(
    path: str, what: str, required: Sequence[str], bar: tqdm, *, include: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Pieces of the file as text, each with the line number of its first row."""
    names = _read_header(path, what, required)
    line = 2
    with open_input(path, what) as file:
        try:
            with open_csv(
                _Reader(file, bar),
                ReadOptions(column_names=names, skip_rows=1, block_size=_BLOCK_BYTES),
                ParseOptions(newlines_in_values=True),
                ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    include_columns=list(include),
                    strings_can_be_null=False,
                ),
            ) as reader:
                for batch in reader:
                    _require_image_ids(path, what, line, batch)
                    yield line, batch
                    line += batch.num_rows
        except pa.ArrowInvalid as error:
            raise PreparationError(f"{what} {path} is not a CSV: {error}.") from error
    if line == 2:
        raise PreparationError(f"{what} {path} has a header and no row.")


def _require_image_ids(path: str, what: str, first_line: int, batch: pa.RecordBatch) -> None:
    if "ImageID" not in batch.schema.names:
        return
    row = pc.index(pc.ascii_trim_whitespace(batch.column("ImageID")), "").as_py()
    if row >= 0:
        raise PreparationError(f"{what} {path}: line {first_line + row} has no ImageID.")


def _read_header(path: str, what: str, required: Sequence[str]) -> list[str]:
    with open_input(path, what) as file:
        head = file.read(_HEADER_BYTES).decode("utf-8-sig", errors="replace")
    first_line = re.split(r"[\r\n]", head, maxsplit=1)[0].strip()
    if not first_line:
        raise PreparationError(f"{what} {path} is empty.")
    columns = [column.strip() for column in next(csv.reader([first_line], skipinitialspace=True))]
    missing = [column for column in required if column not in columns]
    if missing:
        hint = " Its columns are separated by ';': separate them by ','."
        raise PreparationError(
            f"{what} {path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; its "
            f"first line is '{first_line[:200]}'.{hint if ';' in first_line else ''}"
        )
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise PreparationError(f"{what} {path} has more than one column {', '.join(twice)}.")
    return columns


def _to_lines(batch: pa.RecordBatch) -> bytes:
    """The rows as CSV; at least one. An array of texts keeps them end to end in one buffer."""
    texts = [pc.fill_null(column.cast(pa.string()), "") for column in batch.columns]
    lines = _join(texts)
    if _has_more_marks(lines, batch.num_rows, len(texts)):
        lines = _join([_quoted(text) for text in texts])
    return lines.buffers()[2].to_pybytes()


def _join(texts: Sequence[pa.Array]) -> Any:
    end = pa.scalar("")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(*texts, ","), end, "\n")


def _has_more_marks(lines: Any, num_rows: int, num_columns: int) -> bool:
    """Whether a value holds a comma, a quote or a line end, so that there are more than needed."""
    text = np.frombuffer(lines.buffers()[2], np.uint8)
    expected = {",": num_rows * (num_columns - 1), "\n": num_rows, '"': 0, "\r": 0}
    return any(np.count_nonzero(text == ord(mark)) != count for mark, count in expected.items())


def _quoted(texts: pa.Array) -> pa.Array:
    marked = pc.match_substring_regex(texts, '[",\r\n]')
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.if_else(marked, pc.binary_join_element_wise('"', doubled, '"', ""), texts)


class _Reader:
    """What pyarrow reads from: a file that moves a progress bar."""

    closed = False  # pyarrow asks; whoever opened the file closes it

    def __init__(self, file: Any, bar: tqdm) -> None:
        self._file = file
        self._bar = bar

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._bar.update(len(content))
        return content

    def close(self) -> None:
        """Leaves the file open."""


@contextmanager
def _progress(path: str) -> Iterator[tqdm]:
    try:
        total = storage.stat(path).size
    except OSError:
        total = None  # opening it says what is wrong
    with tqdm(
        total=total, unit="B", unit_scale=True, desc=f"reading {path}", delay=PROGRESS_DELAY
    ) as bar:
        yield bar
