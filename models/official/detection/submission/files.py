"""Submission files as memory maps, cut into blocks of images that threads work on.

Every command that reads submissions and writes one does this (`writer` has the rest):

    with open_submission("in.csv") as source:
        def keep(block: Block) -> BlockResult:            # runs in a thread
            rows, faults = scan(block)                     # lock released; ScannedRows
            return print_block(block, rows.take(rows.scores >= 0.03), faults)
        totals = write_submission_file(
            "out.csv", in_file_order(source), keep, threads=2, skip_bad=False)

`align` instead of `in_file_order` joins several files by image id. Bad rows are collected and end
in a BadRowsError before the output gets its name, or are left out and counted (`skip_bad`).
Labels by number: `scan(block, labels)` with known labels (bytes) fills `label_numbers`, and
`print_block(..., labels=labels)` prints them, so adding, dropping or changing labels is arithmetic.
A first pass without output (a histogram, say) is `run_blocks(images, function, threads)`.

Maps cost no memory of their own (`release` gives mapped pages back every 64 MB), the index costs
about 60 bytes and the length of an id per image and file, and results wait in blocks of 512 KB.
"""

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.ops.numpy_boxes import FAR_OUTSIDE
from tpudet.detection.submission.errors import (
    NO_BAD_ROWS,
    NUM_SHOWN,
    BadRow,
    BadRows,
    SubmissionError,
    describe_fault,
)
from tpudet.detection.submission.fusion.blocks import (
    Block,
    ScannedRows,
    SubmissionFile,
    require_whole,
)
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.open_images_csv import HEADER_LINE, is_header
from tpudet.trainkit.files.storage import is_remote, open_file

BLOCK_BYTES = 1 << 19
RELEASE_BYTES = 1 << 26
_EXPECTED_HEADER = f"{HEADER_LINE.strip()} (ImageID is read too)"
_SAMPLED_ROWS = 100  # whose boxes show whether a file is in pixels
_GATHERED_ROWS = 1 << 14  # ids copied at once: the indices take eight bytes for each of theirs


class BlockResult(NamedTuple):
    """The outcome of a block, or the totals of a file."""

    text: bytes  # whole lines
    num_images: int  # lines
    num_read: int  # predictions
    num_written: int
    bad: BadRows


@contextlib.contextmanager
def open_submission(path: str) -> Iterator[SubmissionFile]:
    """Maps and indexes a submission; a file in a bucket is first copied to the local disk.

    Either spelling of the header (ImageId or ImageID, any case), fields in quotes or not, LF or
    CRLF, a byte order mark, blank lines and empty prediction strings are all read.

    Raises:
        SubmissionError: it is empty, its first line is no such header, or it is in pixels.
        OSError: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_file(path, "rb"))
        if is_remote(path):
            import tempfile

            remote, file = file, stack.enter_context(tempfile.TemporaryFile())
            while chunk := remote.read(RELEASE_BYTES):
                file.write(chunk)
            file.flush()
        if file.seek(0, 2) == 0:
            raise SubmissionError(f"{path} is empty; its first line must be {_EXPECTED_HEADER}")
        # Not closed by hand: an array on it may outlive the block, and closing would then fail.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        data = np.frombuffer(mapped, np.uint8)
        message = f"{path} was cut while it was read; run this again when it is whole\n"
        stack.enter_context(load_kernel().WatchedMap(data, os.fsencode(message)))
        yield _index(path, mapped, data)


def in_file_order(source: SubmissionFile) -> Block:
    """All images of one file in its order."""
    rows = np.ascontiguousarray(source.rows.T)
    zeros = np.zeros(len(source.rows), np.int64)
    ends = np.arange(len(source.rows) + 1)
    return Block((source,), zeros, rows[0], rows[1], ends, zeros, rows[2], rows[3], rows[4])


def align(sources: Sequence[SubmissionFile]) -> Block:
    """The images of all files, sorted by id (bytes compared), each with its rows in any file."""
    # Not np.unique, which imports numpy.ma, 8 ms.
    sorted_ids = np.sort(np.concatenate([source.image_ids for source in sources]))
    is_first = np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]])[: len(sorted_ids)]
    image_ids = sorted_ids[is_first]
    images = [np.searchsorted(image_ids, source.image_ids) for source in sources]
    image = np.concatenate(images)
    files = np.repeat(np.arange(len(sources)), [len(rows) for rows in images])
    rows = np.concatenate([source.rows for source in sources])
    order = np.argsort(image, kind="stable")  # files stay in order within an image
    files, rows = files[order], np.ascontiguousarray(rows[order].T)
    counts = np.bincount(image, minlength=len(image_ids))
    ends = np.concatenate([[0], np.cumsum(counts)])
    first = ends[:-1]
    return Block(
        tuple(sources), files[first], rows[0][first], rows[1][first], ends, files, *rows[2:]
    )


def cut(images: Block, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Cuts images into blocks of about `block_bytes` of text, whatever the number of threads."""
    ends = np.concatenate([[0], np.cumsum(images.piece_stops - images.piece_starts + 16)])
    ends = ends[images.piece_ends]
    first, num_images = 0, len(images.id_files)
    while first < num_images:
        last = int(np.searchsorted(ends, ends[first] + block_bytes))
        last = min(max(last, first + 1), num_images)
        yield images.part(first, last)
        first = last


def scan(block: Block, labels: Sequence[bytes] = ()) -> tuple[ScannedRows, np.ndarray]:
    """Reads the predictions of a block.

    Args:
        block: from `cut`.
        labels: known labels; a label number is a place here, -1 for any other label.

    Returns:
        The predictions, and faults [pieces, 2] for `print_block`. A bad row has no predictions.
    """
    *columns, faults = load_kernel().scan(block, labels)
    return ScannedRows(*columns), faults


def print_block(
    block: Block,
    rows: ScannedRows,
    faults: np.ndarray,
    *,
    labels: Sequence[bytes] = (),
    score_decimals: int = 5,
    box_decimals: int = 5,
    num_read: int | None = None,
) -> BlockResult:
    """Prints a block; an image all of whose rows were bad has no line.

    Args:
        block: the images, as they were scanned.
        rows: predictions to print, of the same images.
        faults: from `scan`.
        labels: what `label_numbers` index.
        score_decimals: 0 to 9 decimals.
        box_decimals: likewise, of the coordinates.
        num_read: predictions in the block before some were dropped, for the totals; the number of
            `rows` by default.
    """
    written = with_good_row(block, faults)
    text = load_kernel().print_rows(block, written, rows, labels, score_decimals, box_decimals)
    count = len(rows.scores)
    num_read = count if num_read is None else num_read
    return BlockResult(text, int(written.sum()), num_read, count, bad_rows(block, faults))


def with_good_row(block: Block, faults: np.ndarray) -> np.ndarray:
    """[images] uint8: 1 where at least one row of an image is without fault."""
    good = np.concatenate([[0], np.cumsum(faults[:, 0] == 0)])[block.piece_ends]
    return (good[1:] > good[:-1]).astype(np.uint8)


def bad_rows(block: Block, faults: np.ndarray) -> BadRows:
    """Describes the first faults of a scan and counts all."""
    pieces = np.flatnonzero(faults[:, 0])
    shown = []
    for piece in pieces[:NUM_SHOWN]:
        source = block.sources[block.piece_files[piece]]
        start, stop = int(block.piece_starts[piece]), int(block.piece_stops[piece])
        fault, position = (int(value) for value in faults[piece])
        reason = describe_fault(fault, source.data[start:stop].tobytes(), position - start)
        shown.append(BadRow(source.path, int(block.piece_lines[piece]), reason))
    return BadRows(shown, len(pieces))


def _index(path: str, mapped: mmap.mmap, data: np.ndarray) -> SubmissionFile:
    start, line = _first_row(path, mapped), 2
    parts, ids = [np.zeros((0, 6), np.int64)], [np.zeros(0, "S1")]
    bad = NO_BAD_ROWS
    index_rows = load_kernel().index_rows
    while start < len(data):
        require_whole(path, mapped)
        limit = min(start + RELEASE_BYTES, len(data))
        rows, start, line = index_rows(data, start, limit, line)
        good = rows[:, 5] == 0
        bad = bad.plus(_unusable(path, data, rows[~good]))
        parts.append(rows[good])
        ids.append(_gather(data, rows[good]))
        if start < len(data) and hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
    rows, image_ids = np.concatenate(parts)[:, :5], np.concatenate(ids)
    order = np.argsort(image_ids, kind="stable")
    again = np.flatnonzero(image_ids[order][1:] == image_ids[order][:-1])
    if len(again):
        repeated = order[again + 1]
        shown = [
            BadRow(path, int(rows[order[i + 1], 4]), _repeated(image_ids, rows, int(order[i])))
            for i in again[np.argsort(repeated)][:NUM_SHOWN]
        ]
        bad = bad.plus(BadRows(shown, len(again)))
        rows, image_ids = (np.delete(column, repeated, axis=0) for column in (rows, image_ids))
    require_whole(path, mapped)
    source = SubmissionFile(path, data, rows, image_ids, bad, mapped)
    _require_fractions(source)
    return source


def _first_row(path: str, mapped: mmap.mmap) -> int:
    """Checks the header; returns the start of the line after it."""
    stop = mapped.find(b"\n", 0, 1 << 16)
    line = mapped[: 1 << 10 if stop < 0 else stop]
    text = line.decode("utf-8", "replace")
    if not is_header(text):
        shown = text[:80].rstrip("\r")
        raise SubmissionError(
            f"{path} starts with {shown!r}; its first line must be {_EXPECTED_HEADER}"
        )
    return len(mapped) if stop < 0 else stop + 1


def _require_fractions(source: SubmissionFile) -> None:
    """Refuses a submission most of whose boxes, in rows spread over it, reach far beyond 1.

    It would merge with one in fractions without a word, and score nothing.
    """
    count = len(source.rows)
    sampled = np.linspace(0, count - 1, min(count, _SAMPLED_ROWS), dtype=np.int64)
    found, _ = scan(in_file_order(source._replace(rows=source.rows[sampled])))
    ends = found.boxes[:, 2:].max(axis=1, initial=0.0)
    beyond = np.count_nonzero(ends > FAR_OUTSIDE)
    if beyond > len(ends) / 2:
        raise SubmissionError(
            f"{source.path} is in pixels: {beyond} of {len(ends)} boxes that were looked at end "
            f"beyond {FAR_OUTSIDE:g}, where fractions of the image, 0..1, are expected. Divide x1 "
            "and x2 by the width of the image, y1 and y2 by its height."
        )


def _gather(data: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[rows] bytes: the ids."""
    lengths = rows[:, 1] - rows[:, 0]
    width = int(lengths.max(initial=1))
    ids = np.zeros((len(rows), width), np.uint8)
    columns = np.arange(width)
    for first in range(0, len(rows), _GATHERED_ROWS):
        part = slice(first, first + _GATHERED_ROWS)
        places = np.minimum(rows[part, :1] + columns, len(data) - 1)
        ids[part] = data[places] * (columns < lengths[part, np.newaxis])
    return ids.view(f"S{width}").ravel()


def _unusable(path: str, data: np.ndarray, rows: np.ndarray) -> BadRows:
    shown = []
    for start, line in rows[:NUM_SHOWN, [0, 4]].tolist():
        text = data[start : start + 60].tobytes().split(b"\n")[0].decode("utf-8", "replace")
        reason = (
            f"{text!r} has no comma behind an image id, or the id is empty, longer than 255 bytes "
            "or holds quotes or control characters"
        )
        shown.append(BadRow(path, line, reason))
    return BadRows(shown, len(rows))


def _repeated(image_ids: np.ndarray, rows: np.ndarray, row: int) -> str:
    image_id = image_ids[row].decode("utf-8", "replace")
    return f"image {image_id!r} is in line {rows[row, 4]} already"
