"""The submission format of the Open Images challenges: `ImageId,PredictionString`.

A prediction is `MID score x1 y1 x2 y2`, the numbers with 5 decimals, coordinates in 0..1; the
predictions of an image follow one another in one string, separated by blanks.
"""

import csv
from collections.abc import Iterable, Sequence
from typing import IO, NamedTuple

import numpy as np

HEADER = ("ImageId", "PredictionString")
DECIMALS = 5


class PredictionString(NamedTuple):
    """The predictions of one image as text, and what was changed or left out to get there."""

    text: str
    kept: int
    clipped: int  # kept, but a side lay outside the picture
    without_area: int  # left out: no area after clipping and rounding


def format_predictions(
    identifiers: Sequence[str], labels: np.ndarray, scores: np.ndarray, boxes_normalized: np.ndarray
) -> PredictionString:
    """Writes the detections of one image as a prediction string.

    Args:
        identifiers: C identifiers (MIDs) in the order of the class list.
        labels: [n] 1-based rows of the class list.
        scores: [n].
        boxes_normalized: [n, 4] x1 y1 x2 y2, fractions of the picture; clipped to 0..1 here.
    """
    clipped = np.clip(boxes_normalized.astype(np.float64), 0, 1)
    boxes = np.round(clipped, DECIMALS)
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    is_clipped = (clipped != boxes_normalized).any(axis=1) & has_area
    parts = [
        f"{identifiers[label - 1]} {score:.5f} {x1:.5f} {y1:.5f} {x2:.5f} {y2:.5f}"
        for label, score, (x1, y1, x2, y2) in zip(
            labels[has_area].tolist(),
            scores[has_area].tolist(),
            boxes[has_area].tolist(),
            strict=True,
        )
    ]
    return PredictionString(
        " ".join(parts), len(parts), int(is_clipped.sum()), int((~has_area).sum())
    )


def write_submission(file: IO[str], rows: Iterable[tuple[str, str]]) -> int:
    """Writes the header and `rows` of (image id, prediction string); returns their number.

    Args:
        file: opened for writing text with `newline=""`.
        rows: in the order of the file.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    count = 0
    for row in rows:
        writer.writerow(row)
        count += 1
    return count
