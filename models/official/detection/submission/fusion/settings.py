"""The settings of fusion, for all classes and for some labels."""

import csv
import io
import math
from typing import NamedTuple

METHODS = ("hard", "soft_linear", "soft_gaussian", "wbf", "nmw")
_COLUMNS = ("label", "method", "iou", "sigma", "threshold")


class FusionSettings(NamedTuple):
    """The parameters of `plain_fusion`, for one class or for all."""

    method: str = "soft_gaussian"
    iou: float = 0.3
    sigma: float = 0.5
    threshold: float = 0.02

    def mistakes(self) -> list[str]:
        """The mistakes in words; empty if there are none."""
        found = []
        if self.method not in METHODS:
            found.append(f"method {self.method!r} is not one of {', '.join(METHODS)}")
        if not 0 <= self.iou <= 1:
            found.append(f"iou {self.iou} must be in 0..1")
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            found.append(f"sigma {self.sigma} must be above 0")
        if not 0 <= self.threshold <= 1:
            found.append(f"threshold {self.threshold} must be in 0..1")
        return found


def read_class_settings(text: str, default: FusionSettings) -> dict[str, FusionSettings]:
    """Reads settings by label: CSV with the header `label` and any of the other columns.

    An empty field keeps the value for all classes:

        label,method,iou,threshold
        /m/01g317,hard,0.5,
        /m/0c9ph5,,0.6,0.01

    Args:
        text: of the file.
        default: for all classes.

    Raises:
        ValueError: lists unknown columns, no row, repeated labels, values out of range.
    """
    stream = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    rows = csv.DictReader(stream, skipinitialspace=True)
    try:
        return _read_rows(rows, default)
    except csv.Error as error:
        raise ValueError(f"it is not a CSV: {error}") from error


def _read_rows(rows: csv.DictReader, default: FusionSettings) -> dict[str, FusionSettings]:
    columns = [name.strip() for name in rows.fieldnames or []]
    rows.fieldnames = columns
    wrong = [name for name in columns if name not in _COLUMNS or columns.count(name) > 1]
    if "label" not in columns or wrong:
        raise ValueError(f"the header is {','.join(columns)!r}; known columns: {_COLUMNS}")
    settings: dict[str, FusionSettings] = {}
    mistakes = []
    for row in rows:
        label = (row["label"] or "").strip()
        where = f"line {rows.line_num} ({label or 'no label'})"
        if not label or label in settings:
            mistakes.append(f"{where}: each row needs a label of its own")
        if None in row:
            mistakes.append(f"{where}: more fields than the header has columns")
        values = {k: v.strip() for k, v in row.items() if k and k != "label" and v and v.strip()}
        try:
            given = {k: v if k == "method" else float(v) for k, v in values.items()}
        except ValueError as error:
            mistakes.append(f"{where}: {error}")
            continue
        settings[label] = default._replace(**given)
        mistakes += [f"{where}: {mistake}" for mistake in settings[label].mistakes()]
    if not settings and not mistakes:
        mistakes.append("there is no row below the header")
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return settings
