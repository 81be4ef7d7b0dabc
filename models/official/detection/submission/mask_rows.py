"""Submissions of masks: `ImageID,ImageWidth,ImageHeight,PredictionString`, row by row.

A prediction is `MID score mask`, the mask as in `mask_text`. A row may take megabytes and a file
many gigabytes, so one row is in memory at a time; an index of images takes some 150 bytes each.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, NamedTuple

from tpudet.detection.ops.numpy_masks import MAX_SIDE, Rle
from tpudet.detection.submission.errors import (
    NO_BAD_ROWS,
    BadRow,
    BadRows,
    BadRowsError,
    SubmissionError,
)
from tpudet.detection.submission.files import BlockResult
from tpudet.detection.submission.mask_header import HEADER, is_mask_header
from tpudet.detection.submission.mask_text import MaskError, UnpackedMasks, decode_mask
from tpudet.detection.submission.open_images_csv import DECIMALS
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_remote, open_file
from tpudet.trainkit.images.pixel_limit import MAX_PIXELS

_FIELDS = len(HEADER.split(","))
_WORDS = 3  # a prediction: MID score mask
_MAX_ROW_BYTES = 1 << 27  # of run lengths in memory, a thousand masks of 100 KB
_SIDE_DIGITS = 100  # Python refuses to read thousands


class MaskPrediction(NamedTuple):
    """A prediction as it is written."""

    label: str
    score: float  # 0..1
    mask: str  # base64; what does not decode it checks only where a file may have been cut


class MaskRow(NamedTuple):
    """The predictions of one image."""

    image_id: str
    width: int  # pixels
    height: int
    predictions: tuple[MaskPrediction, ...]
    line: int = 0  # in its file, from 1


class MaskFile:
    """A submission of masks, opened by `open_masks`.

    Attributes:
        bad: the rows found so far that cannot be used.
        unpacked: to count the masks in that are kept in memory.
    """

    def __init__(self, path: str, file: IO[bytes]):
        self.path = path
        self.bad = NO_BAD_ROWS
        self._file = file
        self.unpacked = UnpackedMasks(path, file.seek(0, os.SEEK_END))
        file.seek(0)
        header = file.readline().decode("utf-8", "replace")
        if not is_mask_header(header):
            shown = header[:80].strip()
            raise SubmissionError(
                f"{path} starts with {shown!r}; for masks its first line must be {HEADER} "
                "(ImageId is read too)"
            )
        self._start = file.tell()
        self._index: dict[str, tuple[int, int]] | None = None
        self._ids: tuple[str, ...] | None = None

    def rows(self) -> Iterator[MaskRow]:
        """Yields the usable rows in the order of the file."""
        seen: dict[str, int] = {}
        self._file.seek(self._start)
        for number, line in enumerate(self._file, start=2):
            row = self._parse(line, number)
            if row is None:
                continue
            if row.image_id in seen:
                what = f"image {row.image_id!r} is in line {seen[row.image_id]} already"
                self.refuse(number, what)
                continue
            seen[row.image_id] = number
            yield row

    def image_ids(self) -> tuple[str, ...]:
        """Returns the ids of all images, reading the file once; a repeated one is a bad row."""
        if self._ids is None:
            self._ids = tuple(self._indexed())
        return self._ids

    def row(self, image_id: str) -> MaskRow | None:
        """Returns the row of an image; None if there is none that can be used."""
        place = self._indexed().get(image_id)
        if place is None:
            return None
        offset, number = place
        self._file.seek(offset)
        return self._parse(self._file.readline(), number)

    def _indexed(self) -> dict[str, tuple[int, int]]:
        """Where the row of each image begins, and its line; built once, for it is asked per row."""
        if self._index is None:
            self._index = {}
            self._file.seek(self._start)
            offset = self._start
            for number, line in enumerate(self._file, start=2):
                image_id = _image_id(line)
                if image_id in self._index:
                    what = f"image {image_id!r} is in line {self._index[image_id][1]} already"
                    self.refuse(number, what)
                elif line.strip():
                    self._index[image_id] = (offset, number)
                offset += len(line)
        return self._index

    def refuse(self, line: int, reason: str) -> None:
        """Counts a bad row."""
        self.bad = self.bad.plus(BadRows([BadRow(self.path, line, reason)], 1))

    def _parse(self, line: bytes, number: int) -> MaskRow | None:
        if not line.strip():
            return None
        try:
            return parse_row(line)._replace(line=number)
        except MaskError as error:
            self.refuse(number, str(error))
            return None


@contextmanager
def open_masks(path: str) -> Iterator[MaskFile]:
    """Opens a submission of masks; a file in a bucket is first copied to the local disk.

    Raises:
        SubmissionError: its first line is another header.
        OSError: it cannot be opened.
    """
    with ExitStack() as stack:
        file = stack.enter_context(open_file(path, "rb"))
        if is_remote(path):
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(file, copy, 1 << 26)
            file = copy
        yield MaskFile(path, file)


def parse_row(line: bytes) -> MaskRow:
    """Reads a line; scores and sizes are checked, of the masks only one at the end of a file.

    Raises:
        MaskError: it cannot be used.
    """
    try:
        # No csv.reader: its limit of a field's length, which masks exceed, is that of the process.
        fields = [_unquote(field) for field in line.decode().split(",")]
    except UnicodeDecodeError as error:
        raise MaskError(f"is not text: {error}") from error
    if len(fields) != _FIELDS or not fields[0]:
        raise MaskError(f"{len(fields)} fields instead of {_FIELDS}, or no image id")
    if not all(
        side.isdecimal() and len(side) < _SIDE_DIGITS and 0 < int(side) <= MAX_SIDE
        for side in fields[1:3]
    ):
        raise MaskError(
            f"ImageWidth,ImageHeight are {fields[1][:40]},{fields[2][:40]}; both must be whole "
            f"numbers from 1 to {MAX_SIDE}"
        )
    width, height = int(fields[1]), int(fields[2])
    if width * height > MAX_PIXELS:
        raise MaskError(f"{width} x {height} pixels are too many: at most {MAX_PIXELS:,} are read")
    words = fields[3].split()
    if len(words) % _WORDS:
        raise MaskError(f"{len(words)} tokens, which is not a multiple of 3 (LABEL score mask)")
    predictions = []
    for place in range(0, len(words), _WORDS):
        label, text, mask = words[place : place + _WORDS]
        try:
            score = float(text)
        except ValueError:
            score = -1.0
        if not 0 <= score <= 1:
            number = place // _WORDS + 1
            raise MaskError(f"prediction {number}: the score is {text[:40]!r}, not in 0..1")
        predictions.append(MaskPrediction(label, score, mask))
    if predictions and not line.endswith(b"\n"):  # a cut shows here; each mask would cost too much
        _require_whole(predictions[-1].mask, len(predictions), height, width)
    return MaskRow(fields[0], width, height, tuple(predictions))


def _require_whole(mask: str, number: int, height: int, width: int) -> None:
    try:
        decode_mask(mask, height, width)
    except MaskError as error:
        raise MaskError(
            f"prediction {number}: its mask {error}; the line has no end, as in a file that is cut"
        ) from error


def decode_masks(row: MaskRow, places: Iterable[int]) -> Iterator[tuple[MaskPrediction, Rle]]:
    """Yields the predictions of a row at some places, from 0, with their masks.

    Raises:
        MaskError: a mask cannot be read, or all of them would take too much memory.
    """
    total = 0
    for place in places:
        prediction = row.predictions[place]
        try:
            mask = decode_mask(prediction.mask, row.height, row.width)
        except MaskError as error:
            raise MaskError(f"prediction {place + 1}: its mask {error}") from error
        total += len(mask["counts"])
        if total > _MAX_ROW_BYTES:
            raise MaskError(f"its masks unpack to more than {_MAX_ROW_BYTES:,} bytes")
        yield prediction, mask


def format_row(row: MaskRow, score_decimals: int = DECIMALS) -> str:
    """Formats a row as a line; inverse of `parse_row`, up to the rounding of scores."""
    words = (f"{label} {score:.{score_decimals}f} {mask}" for label, score, mask in row.predictions)
    return f"{row.image_id},{row.width},{row.height},{' '.join(words)}\n"


def write_masks(
    target: str,
    rows: Iterable[tuple[MaskRow, int]],
    sources: Sequence[MaskFile],
    *,
    score_decimals: int = DECIMALS,
    force: bool,
    skip_bad: bool,
) -> BlockResult:
    """Writes a submission of masks, whole or not at all.

    Args:
        target: the submission to write.
        rows: in the order of the file, each with the number of predictions read for it.
        sources: whose bad rows count.
        score_decimals: 0 to 9 decimals.
        force: whether an existing target is replaced.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False; nothing is written then.
        UserError: another process writes the target.
        OSError: the target cannot be written.
    """
    num_images = num_read = num_written = 0
    with claimed_file(target, "w", force=force) as file:
        file.write(f"{HEADER}\n")
        for row, count in rows:
            num_read += count
            file.write(format_row(row, score_decimals))
            num_images += 1
            num_written += len(row.predictions)
        bad = NO_BAD_ROWS
        for source in sources:
            bad = bad.plus(source.bad)
        if bad.total and not skip_bad:
            raise BadRowsError(bad)
    return BlockResult(b"", num_images, num_read, num_written, bad)


def _unquote(field: str) -> str:
    field = field.strip()
    inside = field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field
    if '"' in inside:
        raise MaskError("has a quote without its end")
    return inside.strip()


def _image_id(line: bytes) -> str:
    return line.split(b",", 1)[0].decode("utf-8", "replace").strip(' \t\r\n"')
