"""The functions of prediction_text.pyx in plain Python: its reference, and its substitute.

Results are equal to the compiled ones, byte for byte. Slow: about 1 MB/s.
"""

import re
from collections.abc import Sequence

import numpy as np

from tpudet.detection.submission.errors import BOX, LABEL, LARGEST, NUMBER, SCORE, TOKENS
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows

LONGEST_ID = LONGEST_LABEL = 255
_LONGEST_NUMBER = 63
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NO_LABEL = re.compile(rb'[\x00-\x20",\x7f]')
_NO_ID = re.compile(rb'[\x00-\x1f"\x7f]')
_TOKEN = re.compile(rb"[^ \t]+")


class WatchedMap:
    """A mapped file; while the block runs, a read of bytes that are gone ends with a message.

    Only the compiled class does that; with this one such a read ends the process by SIGBUS.

    Args:
        data: [size] uint8, the mapped bytes, at least one.
        message: what standard error gets, before the process ends with exit code 2.
    """

    def __init__(self, data: np.ndarray, message: bytes) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def index_rows(data: np.ndarray, start: int, limit: int, line: int) -> tuple[np.ndarray, int, int]:
    """Finds the rows that begin in `start:limit`; blank lines are skipped.

    Args:
        data: [size] uint8, the bytes of a file.
        start: where a line begins.
        limit: where to stop; a row that begins before it is read whole.
        line: the number of the line at `start`.

    Returns:
        [rows, 6] int64: start and stop of the id, start and stop of the prediction string (blanks
        and quotes around them left out), line, and 0, or -1 where there is no comma or no id of 1
        to 255 bytes without quotes and control characters; then where the next line begins, and
        its number.
    """
    if not 0 <= start <= limit <= len(data):
        raise ValueError(f"no bytes {start}:{limit} among {len(data)}")
    rows = []
    while start < limit:
        stop = _line_end(data, start)
        text = data[start:stop].tobytes()
        if text.strip(b" \t\r"):
            rows.append(_split_row(text, start, line))
        start = min(stop + 1, len(data))
        line += 1
    return np.array(rows, np.int64).reshape(-1, 6), start, line


def scan(block: Block, known_labels: Sequence[bytes]) -> tuple[np.ndarray, ...]:
    """Reads the predictions of a block of images; an image may have pieces in several files.

    Args:
        block: the images.
        known_labels: labels that get their index in this list as number.

    Returns:
        The columns of `ScannedRows`; and faults [pieces, 2] int64: 0, or the fault (see
        `submission.errors`) and its place in the file. A piece with a fault gives no prediction.
    """
    arrays = block.arrays()
    numbers = {label: number for number, label in enumerate(known_labels)}
    columns: list[list] = [[], [], [], [], [], []]
    faults = np.zeros((len(block.piece_files), 2), np.int64)
    image_ends = [0]
    for first, last in zip(block.piece_ends[:-1], block.piece_ends[1:], strict=True):
        for piece in range(first, last):
            file = int(block.piece_files[piece])
            start = int(block.piece_starts[piece])
            text = arrays[file][start : block.piece_stops[piece]].tobytes()
            found, fault, position = scan_string(text)
            if fault:
                faults[piece] = fault, start + position
                continue
            for place, label, score, box in found:
                values = (file, start + place, len(label), numbers.get(label, -1), score, box)
                for column, value in zip(columns, values, strict=True):
                    column.append(value)
        image_ends.append(len(columns[0]))
    kinds = (np.int32, np.int64, np.int32, np.int32, np.float64, np.float64)
    arrays_found = [np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
    arrays_found[-1] = arrays_found[-1].reshape(-1, 4)
    return np.array(image_ends, np.int64), *arrays_found, faults


def scan_string(text: bytes) -> tuple[list[tuple[int, bytes, float, tuple]], int, int]:
    """Reads a prediction string: (place, label, score, box) each, or a fault and its place."""
    tokens = [(match.start(), match.group()) for match in _TOKEN.finditer(text)]
    found = []
    for first in range(0, len(tokens), 6):
        fault, place, values = _read_prediction(tokens[first : first + 6], len(text))
        if fault:
            missing = fault != LABEL and len(tokens) % 6
            return [], TOKENS if missing else fault, place
        found.append((*tokens[first], values[0], values[1:]))
    return found, 0, 0


def print_rows(
    block: Block,
    written: np.ndarray,
    rows: ScannedRows,
    known_labels: Sequence[bytes],
    score_decimals: int,
    box_decimals: int,
) -> bytes:
    """Prints a line `id,predictions` for each image of which `written` [images] uint8 is not 0.

    A label is `known_labels[number]`, or the text in the file if its number is -1.
    """
    arrays = block.arrays()
    lines = []
    for image, (first, last) in enumerate(
        zip(rows.image_ends[:-1], rows.image_ends[1:], strict=True)
    ):
        if not written[image]:
            continue
        parts = []
        for i in range(first, last):
            if rows.label_numbers[i] >= 0:
                label = known_labels[rows.label_numbers[i]]
            else:
                start = rows.label_starts[i]
                label = arrays[rows.label_files[i]][start : start + rows.label_lengths[i]].tobytes()
            box = b" ".join(b"%.*f" % (box_decimals, value) for value in rows.boxes[i])
            parts.append(b"%b %.*f %b" % (label, score_decimals, rows.scores[i], box))
        start, stop = block.id_starts[image], block.id_stops[image]
        image_id = arrays[block.id_files[image]][start:stop].tobytes()
        lines.append(image_id + b"," + b" ".join(parts) + b"\n")
    return b"".join(lines)


def parse_number(token: bytes) -> float | None:
    """The value of a decimal number, None for anything else."""
    if len(token) > _LONGEST_NUMBER or not _NUMBER.fullmatch(token):
        return None
    return float(token)


def _line_end(data: np.ndarray, start: int) -> int:
    size = 1 << 14
    while start < len(data):
        hits = np.flatnonzero(data[start : start + size] == 10)
        if len(hits):
            return start + int(hits[0])
        start += size
        size *= 2
    return len(data)


def _split_row(text: bytes, start: int, line: int) -> tuple[int, ...]:
    stripped = text.rstrip(b" \t\r")
    first = len(stripped) - len(stripped.lstrip(b" \t"))
    comma = stripped.find(b",", first)
    wrong = (start + first,) * 4 + (line, -1)
    if comma < 0:
        return wrong
    id_span = _unquoted(stripped, first, len(stripped[:comma].rstrip(b" \t")))
    image_id = stripped[slice(*id_span)]
    if not 0 < len(image_id) <= LONGEST_ID or _NO_ID.search(image_id):
        return wrong
    text_first = len(stripped) - len(stripped[comma + 1 :].lstrip(b" \t"))
    text_span = _unquoted(stripped, text_first, len(stripped))
    if text_span[0] != text_first:  # in quotes: blanks inside go too
        inner = stripped[slice(*text_span)]
        left = len(inner) - len(inner.lstrip(b" \t"))
        text_span = text_span[0] + left, text_span[0] + max(left, len(inner.rstrip(b" \t")))
    return (*(start + place for place in (*id_span, *text_span)), line, 0)


def _unquoted(text: bytes, start: int, stop: int) -> tuple[int, int]:
    quoted = stop - start >= 2 and text[start] == text[stop - 1] == ord('"')
    return start + quoted, stop - quoted


def _read_prediction(
    tokens: Sequence[tuple[int, bytes]], size: int
) -> tuple[int, int, list[float]]:
    place, label = tokens[0]
    if len(label) > LONGEST_LABEL or _NO_LABEL.search(label):
        return LABEL, place, []
    values: list[float] = []
    for i in range(1, 6):
        if i == len(tokens):
            return TOKENS, size, []
        position, token = tokens[i]
        value = parse_number(token)
        if value is None:
            return NUMBER, position, []
        if i == 1 and not 0 <= value <= 1:
            return SCORE, position, []
        if not abs(value) <= LARGEST:
            return NUMBER, position, []
        values.append(value)
    if values[3] < values[1] or values[4] < values[2]:
        return BOX, place, []
    return 0, 0, values
