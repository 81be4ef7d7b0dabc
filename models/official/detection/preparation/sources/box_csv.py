"""Reads and writes box CSVs (Open Images: 13 columns, relative coordinates) of any size.

The training boxes are 12.2 million rows, 1.4 GB of text. Files are read and written in pieces of a
few megabytes, so that a table is never in memory twice.
"""

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, open_csv
from tqdm import tqdm

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import open_input
from tpudet.trainkit.files.storage import whole_file

ALL_COLUMNS = (
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
)
CORNER_COLUMNS = {"y1": "YMin", "x1": "XMin", "y2": "YMax", "x2": "XMax"}
UNKNOWN = -1  # of a flag, as Open Images writes it
_CATEGORIES = ("ImageID", "Source", "LabelName")
_FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
_BLOCK_BYTES = 1 << 24
_BLOCK_ROWS = 1 << 16
_HEADER_BYTES = 1 << 16
PROGRESS_DELAY = 3.0  # seconds; shorter work gets no progress bar


def read_boxes(
    path: str, what: str = "--annotations", *, columns: Sequence[str] = ALL_COLUMNS
) -> pd.DataFrame:
    """Reads columns of a box CSV, whatever their order in the file.

    Args:
        path: the CSV, local or in a bucket.
        what: the argument that named it, for messages.
        columns: a subset of ALL_COLUMNS; exactly these are read, and all are required.

    Returns:
        One row per line, in the order of the file: ImageID, Source and LabelName as categoricals
        with categories in order of first appearance (a blank Source or LabelName is NaN); flags as
        int8 (1, 0, or -1 for unknown or blank); Confidence and coordinates as float64, NaN if not a
        number.

    Raises:
        UserError: the file is missing, empty, without rows, lacks a column, is not a CSV, or has a
            row without ImageID, with a flag other than 1, 0 and -1, or with text for a number.
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
    """Reads a box CSV piece by piece, every column as unchanged text; blanks are "".

    Args:
        path: the CSV, local or in a bucket.
        what: the argument that named it, for messages.
        required: required columns; all others are read too.

    Raises:
        UserError: as `read_boxes`, when the piece concerned is read.
    """
    with _progress(path) as bar:
        for _, batch in _read_batches(path, what, required, bar, include=()):
            yield batch


def select_rows(batches: Iterable[pa.RecordBatch], rows: np.ndarray) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file's pieces for which `rows`, [all rows] bool, is true, in order."""
    first = 0
    for batch in batches:
        yield batch.filter(pa.array(rows[first : first + batch.num_rows]))
        first += batch.num_rows


def write_boxes(path: str, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    r"""Writes a box CSV atomically; text is unchanged.

    Values are quoted only if CSV requires it; lines end with "\n". Numbers are written with as many
    digits as are needed to read the same number back.

    Args:
        path: local or in a bucket.
        batches: pieces with the same columns, at least one; the names of the first are the header.

    Returns:
        The number of rows.

    Raises:
        OSError: the file cannot be written. Exceptions of `batches` are raised too. An existing
            file is kept then.
    """
    with whole_file(path, "wb") as file:
        return write_rows(file, batches)


def write_rows(file: Any, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Writes a box CSV to an open file of bytes, as `write_boxes` does."""
    num_rows = 0
    names: list[str] = []
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
        raise ValueError("There are no columns to write.")
    return num_rows


def parse_flags(path: str, what: str, first_line: int, name: str, texts: pa.Array) -> np.ndarray:
    """Parses flags: 1, 0, and -1 for unknown or blank, as int8.

    Raises:
        UserError: there is another value; names its line.
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
        raise UserError(
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
    except pa.ArrowInvalid:
        numbers = pd.to_numeric(texts.to_pandas(), errors="coerce").to_numpy(np.float64)
    trimmed = pc.utf8_lower(pc.ascii_trim_whitespace(texts)).to_pandas()
    unread = np.flatnonzero(np.isnan(numbers) & ~trimmed.isin((None, "", "nan")).to_numpy())
    if unread.size:
        row = int(unread[0])
        raise UserError(
            f"{what} {path}: {name} of line {first_line + row} is '{texts[row].as_py()}', and "
            f"{unread.size - 1} more of its values are not numbers; write numbers as 0.358."
        )
    return pa.array(numbers)


def _read_batches(
    path: str, what: str, required: Sequence[str], bar: tqdm, *, include: Sequence[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields pieces of the file as text, each with the line number of its first row."""
    names = _read_header(path, what, required)
    line = 2
    with open_input(path, what) as file, _native_file(file, path) as native:
        try:
            with open_csv(
                native,
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
                    bar.update(native.tell() - bar.n)
        except pa.ArrowInvalid as error:
            raise UserError(f"{what} {path} is not a CSV: {error}.") from error
    if line == 2:
        raise UserError(f"{what} {path} has a header and no row.")


def _require_image_ids(path: str, what: str, first_line: int, batch: pa.RecordBatch) -> None:
    if "ImageID" not in batch.schema.names:
        return
    row = pc.index(pc.ascii_trim_whitespace(batch.column("ImageID")), "").as_py()
    if row >= 0:
        raise UserError(f"{what} {path}: line {first_line + row} has no ImageID.")


def _read_header(path: str, what: str, required: Sequence[str]) -> list[str]:
    with open_input(path, what) as file:
        head = file.read(_HEADER_BYTES).decode("utf-8-sig", errors="replace")
    first_line = re.split(r"[\r\n]", head, maxsplit=1)[0].strip()
    if not first_line:
        raise UserError(f"{what} {path} is empty.")
    columns = [column.strip() for column in next(csv.reader([first_line], skipinitialspace=True))]
    missing = [column for column in required if column not in columns]
    if missing:
        hint = " Its columns are separated by ';': separate them by ','."
        raise UserError(
            f"{what} {path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; its "
            f"first line is '{first_line[:200]}'.{hint if ';' in first_line else ''}"
        )
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise UserError(f"{what} {path} has more than one column {', '.join(twice)}.")
    return columns


def _to_lines(batch: pa.RecordBatch) -> bytes:
    """Returns at least one row as CSV. An array of strings is one contiguous buffer."""
    texts = [pc.fill_null(column.cast(pa.string()), "") for column in batch.columns]
    lines = _join(texts)
    if _has_more_marks(lines, batch.num_rows, len(texts)):
        lines = _join([_quoted(text) for text in texts])
    return lines.buffers()[2].to_pybytes()


def _join(texts: Sequence[pa.Array]) -> Any:
    end = pa.scalar("")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(*texts, ","), end, "\n")


def _has_more_marks(lines: Any, num_rows: int, num_columns: int) -> bool:
    """Whether a value contains a comma, a quote or a line end."""
    text = np.frombuffer(lines.buffers()[2], np.uint8)
    expected = {",": num_rows * (num_columns - 1), "\n": num_rows, '"': 0, "\r": 0}
    return any(np.count_nonzero(text == ord(mark)) != count for mark, count in expected.items())


def _quoted(texts: pa.Array) -> pa.Array:
    marked = pc.match_substring_regex(texts, '[",\r\n]')
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.if_else(marked, pc.binary_join_element_wise('"', doubled, '"', ""), texts)


@contextmanager
def _native_file(file: Any, path: str) -> Iterator[pa.NativeFile]:
    """Opens a file without Python's help: one in a bucket is copied to this machine first.

    Arrow reads ahead in its own threads. One that held a Python file while the interpreter ended
    would be killed inside a C++ destructor, which aborts the process. The last to use the file
    closes it, which may be one of these threads.
    """
    if not storage.is_remote(path):
        yield pa.OSFile(os.fsencode(path))
        return
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(file, copy, _BLOCK_BYTES)
        copy.flush()
        yield pa.OSFile(os.fsencode(copy.name))


@contextmanager
def _progress(path: str) -> Iterator[tqdm]:
    try:
        total = storage.stat(path).size
    except OSError:
        total = None  # the error is raised when the file is opened
    with tqdm(
        total=total, unit="B", unit_scale=True, desc=f"reading {path}", delay=PROGRESS_DELAY
    ) as bar:
        yield bar
