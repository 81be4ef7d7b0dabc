"""The table of an evaluation by class: for the log, for a CSV file, for a page."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.class_scores import ClassScores, best_points
from tpudet.detection.evaluation.coco import MASK_PREFIX

_ROWS_IN_LOG = 20
_MASK_HEADER = "mask AP"
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
    mask_ap: float | None = None  # None also where no masks are predicted


def class_rows(
    found: ClassScores, metrics: Mapping[str, float], class_names: Sequence[str]
) -> list[ClassRow]:
    """Returns a row for each of C classes, in their order.

    Args:
        found: their scores.
        metrics: with `AP/<class name>`, and `mask_AP/<class name>` where there are masks.
        class_names: C names.
    """
    best = best_points(found)
    rows = []
    for row, name in enumerate(class_names):
        rows.append(
            ClassRow(
                name=name,
                images=int(found.images[row]),
                instances=int(found.instances[row]),
                ap=_share(metrics[f"AP/{name}"]),
                ap50=_share(found.ap50[row]),
                precision=_share(best.precision[row]),
                recall=_share(best.recall[row]),
                f1=_share(best.f1[row]),
                threshold=_share(best.threshold[row]),
                mask_ap=_share(metrics.get(f"{MASK_PREFIX}AP/{name}", -1.0)),
            )
        )
    return rows


def _share(value: float) -> float | None:
    return None if value == -1 or np.isnan(value) else float(value)


def class_headers(rows: Sequence[ClassRow]) -> tuple[str, ...]:
    """Names of the columns; masks have one if any class has a value."""
    return (*_HEADERS, _MASK_HEADER) if any(row.mask_ap is not None for row in rows) else _HEADERS


def shown_shares(row: ClassRow, pattern: str, *, missing: str) -> tuple[str, ...]:
    """The shares of a class as text, those of the columns after its counts.

    Args:
        row: the class.
        pattern: of a share, such as `.3f`.
        missing: text for one that is undefined.
    """
    return tuple(missing if value is None else format(value, pattern) for value in row[3:])


def format_class_table(rows: Sequence[ClassRow]) -> str:
    """Aligned columns under a header; of many classes those with the most instances."""
    shown = sorted(rows, key=lambda row: -row.instances)[:_ROWS_IN_LOG]
    headers = class_headers(rows)
    cells = [headers, *(_cells(row, ".3f", missing="-") for row in shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(headers))]
    lines = []
    for name, *numbers in cells:
        columns = zip(numbers, widths[1:], strict=False)  # rows have a cell for masks in any case
        lines.append("  ".join([name.ljust(widths[0]), *(c.rjust(w) for c, w in columns)]))
    rest = len(rows) - len(shown)
    return "\n".join([*lines, f"and {rest} more classes"] if rest else lines)


def class_table_csv(rows: Sequence[ClassRow]) -> str:
    """The whole table with a header; a share that is undefined is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headers = class_headers(rows)
    writer.writerow(headers)
    writer.writerows(_cells(row, ".4f", missing="")[: len(headers)] for row in rows)
    return text.getvalue()


def _cells(row: ClassRow, pattern: str, *, missing: str) -> tuple[str, ...]:
    shares = shown_shares(row, pattern, missing=missing)
    return row.name, str(row.images), str(row.instances), *shares
