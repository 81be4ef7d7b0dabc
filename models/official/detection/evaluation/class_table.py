"""The table of an evaluation by class: for the log, for a CSV file, for a page."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.class_scores import ClassScores, best_points

_ROWS_IN_LOG = 20
_HEADERS = ("class", "images", "instances", "AP", "AP50", "precision", "recall", "F1", "score")


class ClassRow(NamedTuple):
    """One class; a share is None where it is undefined, without an instance."""

    name: str
    images: int
    instances: int
    ap: float | None  # by the rules of the evaluation
    ap50: float | None
    precision: float | None  # at the best F1
    recall: float | None
    f1: float | None
    threshold: float | None  # predictions of this score or more give the best F1


def class_rows(
    found: ClassScores, metrics: Mapping[str, float], class_names: Sequence[str]
) -> list[ClassRow]:
    """Returns a row for each of C classes, in their order.

    Args:
        found: their scores.
        metrics: with `AP/<class name>`.
        class_names: C names.
    """
    best = best_points(found)
    columns = (found.ap50, best.precision, best.recall, best.f1, best.threshold)
    rows = []
    for row, name in enumerate(class_names):
        ap = metrics[f"AP/{name}"]
        values = [None if np.isnan(column[row]) else float(column[row]) for column in columns]
        counts = int(found.images[row]), int(found.instances[row])
        rows.append(ClassRow(name, *counts, None if ap == -1 else ap, *values))
    return rows


def format_class_table(rows: Sequence[ClassRow]) -> str:
    """Aligned columns under a header; of many classes those with the most instances."""
    shown = sorted(rows, key=lambda row: -row.instances)[:_ROWS_IN_LOG]
    cells = [_HEADERS, *(_cells(row, ".3f", missing="-") for row in shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADERS))]
    lines = [
        "  ".join(
            [
                line[0].ljust(widths[0]),
                *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)),
            ]
        )
        for line in cells
    ]
    rest = len(rows) - len(shown)
    return "\n".join([*lines, f"and {rest} more classes"] if rest else lines)


def class_table_csv(rows: Sequence[ClassRow]) -> str:
    """The whole table with a header; a share that is undefined is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADERS)
    writer.writerows(_cells(row, ".4f", missing="") for row in rows)
    return text.getvalue()


def _cells(row: ClassRow, pattern: str, *, missing: str) -> tuple[str, ...]:
    shares = (missing if value is None else format(value, pattern) for value in row[3:])
    return row.name, str(row.images), str(row.instances), *shares
