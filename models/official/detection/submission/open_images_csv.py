"""The submission format of the Open Images challenges: `ImageId,PredictionString`.

A prediction is `MID score x1 y1 x2 y2`, the numbers with 5 decimals, coordinates in 0..1; the
predictions of an image follow one another in one string, separated by blanks.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np

from tpudet.detection.submission.ancestors import AncestorTable, with_ancestors
from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.errors import listing

HEADER_LINE = "ImageId,PredictionString\n"
DECIMALS = 5
_MARKS = frozenset(',"')
MAX_WORD_BYTES = 255  # of a word that readers take
_WORDS = 6  # a prediction: MID score x1 y1 x2 y2


class PredictionString(NamedTuple):
    """The predictions of one image as text, with counts of the changes."""

    text: str
    kept: int  # in the text, with ancestors
    clipped: int  # kept, but a side was outside the image
    without_area: int  # left out: no area after clipping and rounding


def format_predictions(
    identifiers: Sequence[str],
    labels: np.ndarray,
    scores: np.ndarray,
    boxes_normalized: np.ndarray,
    ancestors: AncestorTable | None = None,
) -> PredictionString:
    """Formats the detections of one image as a prediction string.

    Args:
        identifiers: C identifiers (MIDs) in the order of the class list.
        labels: [n] 1-based rows of the class list.
        scores: [n].
        boxes_normalized: [n, 4] x1 y1 x2 y2, fractions of the image; clipped to 0..1 here.
        ancestors: whose first C labels are `identifiers`; a detection's ancestors follow it.
    """
    clipped = np.clip(boxes_normalized.astype(np.float64), 0, 1)
    boxes = np.round(clipped, DECIMALS)
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    is_clipped = (clipped != boxes_normalized).any(axis=1) & has_area
    rows, numbers = np.flatnonzero(has_area), labels[has_area] - 1
    if ancestors is not None:
        identifiers = ancestors.labels
        chosen, numbers = with_ancestors(
            ancestors, np.zeros(len(rows), np.int64), numbers, scores[rows], boxes[rows]
        )
        rows = rows[chosen]
    parts = [
        f"{identifiers[number]} {score:.5f} {x1:.5f} {y1:.5f} {x2:.5f} {y2:.5f}"
        for number, score, (x1, y1, x2, y2) in zip(
            numbers.tolist(), scores[rows].tolist(), boxes[rows].tolist(), strict=True
        )
    ]
    return PredictionString(
        " ".join(parts), len(parts), int(is_clipped.sum()), int((~has_area).sum())
    )


class ParsedPredictions(NamedTuple):
    """The n predictions of one image, as they are in the text: unchecked numbers, any order."""

    identifiers: list[str]  # n MIDs
    scores: np.ndarray  # [n] float64
    boxes_normalized: np.ndarray  # [n, 4] float64 x1 y1 x2 y2, fractions of the image


def parse_predictions(text: str) -> ParsedPredictions:
    """Reads a prediction string; inverse of `format_predictions`, up to its rounding.

    Raises:
        ValueError: not six words per prediction, or a word that should be a number and is not.
    """
    words = text.split()
    if len(words) % _WORDS:
        raise ValueError(
            f"{len(words)} words; a prediction has six: MID score x1 y1 x2 y2. The last are "
            f"'{' '.join(words[-_WORDS:])}'"
        )
    numbers = np.empty((len(words) // _WORDS, _WORDS - 1))
    for column in range(1, _WORDS):
        numbers[:, column - 1] = list(map(float, words[column::_WORDS]))
    return ParsedPredictions(words[::_WORDS], numbers[:, 0], numbers[:, 1:])


def header_fields(line: str) -> list[str]:
    """The names of the columns in a first line, in small letters, without quotes."""
    return [field.strip(' \t\r\n"').lower() for field in line.removeprefix("\ufeff").split(",")]


def is_header(line: str) -> bool:
    """Whether a line is the header: `ImageId` or `ImageID`, any case, in quotes or not."""
    return header_fields(line) == header_fields(HEADER_LINE)


def read_submission(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (image id, prediction string) of each row; the inverse of `write_submission`.

    Takes any prediction string, unlike `files.open_submission`, whose rows are checked. Empty lines
    are skipped, and neither column may hold a comma, so quotes around them are dropped.

    Args:
        lines: of the file, the first of which is the header.

    Raises:
        ValueError: another header or none, or a line without image id or comma, by its number.
    """
    expected = HEADER_LINE.strip()
    number = 0
    for number, line in enumerate(lines, start=1):
        shown = line.strip()[:100]
        if number == 1:
            if not is_header(line):
                raise ValueError(f"its first line is '{shown}'; it should be '{expected}'")
            continue
        image_id, comma, text = (part.strip(' "\r\n') for part in line.partition(","))
        if image_id and comma:
            yield image_id, text
        elif shown:
            raise ValueError(f"line {number} is '{shown}', not {expected}")
    if number == 0:
        raise ValueError(f"it is empty; its first line should be '{expected}'")


def require_words(texts: Iterable[str], what: str, advice: str, *, also: str = "") -> None:
    """Refuses text that would be cut in two or quoted in a submission, which no reader takes.

    Args:
        texts: such as class identifiers.
        what: they are, for the message.
        advice: what to do.
        also: characters that are allowed.

    Raises:
        SubmissionError: names the first ten.
    """
    wrong = [text for text in texts if not _is_word(text, also)]
    if wrong:
        raise SubmissionError(
            f"{len(wrong)} {what} are empty, too long, or have blanks, commas or quotes, which a "
            f"submission cannot hold: {listing(map(repr, wrong))}; {advice}"
        )


def _is_word(text: str, also: str) -> bool:
    is_short = 0 < len(text.encode()) <= MAX_WORD_BYTES
    return is_short and all(
        mark in also or (mark.isprintable() and not mark.isspace() and mark not in _MARKS)
        for mark in text
    )


def write_submission(file: IO[str], rows: Iterable[tuple[str, str]]) -> int:
    """Writes the header and `rows` of (image id, prediction string); returns their number.

    Args:
        file: opened for writing text with `newline=""`.
        rows: in the order of the file.
    """
    file.write(HEADER_LINE)
    writer = csv.writer(file, lineterminator="\n")
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count
