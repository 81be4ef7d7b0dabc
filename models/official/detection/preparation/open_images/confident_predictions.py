"""Reads the confident predictions of a submission, with thresholds per class."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.detection.submission.open_images_csv import (
    ParsedPredictions,
    parse_predictions,
    read_submission,
)
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import open_input, read_input_text

_FAULTS_SHOWN = 10


def read_confident(
    path: str,
    *,
    min_conf: float,
    classes: Sequence[ClassEntry] | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[pd.DataFrame, Counter[str]]:
    """Reads the predictions whose score is above the threshold of their class.

    Args:
        path: the submission.
        min_conf: threshold of the classes that `thresholds` does not name.
        classes: the classes to take; None for all.
        thresholds: by label, as written in the submission.

    Returns:
        One row per prediction, in the order of the file: image and label (str), score, y1 x1 y2 x2
        (float64, fractions of the image, unchecked); and the number left out by reason.

    Raises:
        UserError: not a submission, or scores above 1; lists the first images concerned.
    """
    known = class_ids(classes) if classes is not None else None
    limits = dict(thresholds or {})
    counts: Counter[str] = Counter()
    images, labels, numbers, faults = [], [], [], []
    try:
        for image, text in read_submission(_lines(path)):
            try:
                parsed = parse_predictions(text)
                if (parsed.scores > 1).any():
                    raise ValueError(f"the score {parsed.scores.max():g} is above 1")
            except ValueError as error:
                faults.append(f"{image}: {error}")
                continue
            rows = _confident_rows(parsed, min_conf, limits)
            counts["not above the threshold"] += len(parsed.scores) - len(rows)
            if known is not None:
                counts["of other classes"] += len(rows)
                rows = [row for row in rows if parsed.identifiers[row] in known]
                counts["of other classes"] -= len(rows)
            if len(rows):
                images += [image] * len(rows)
                labels += [parsed.identifiers[row] for row in rows]
                numbers.append(np.column_stack([parsed.scores, parsed.boxes_normalized])[rows])
    except ValueError as error:
        raise UserError(f"PREDICTIONS {path} is not a submission: {error}.") from error
    if faults:
        raise UserError(_list_faults(f"PREDICTIONS {path}: {len(faults)} images", faults))
    values = np.concatenate(numbers) if numbers else np.empty((0, 5))
    columns = dict(zip(("score", "x1", "y1", "x2", "y2"), values.T, strict=True))
    return pd.DataFrame({"image": images, "label": labels, **columns}), counts


def _confident_rows(
    parsed: ParsedPredictions, min_conf: float, limits: Mapping[str, float]
) -> np.ndarray:
    if not limits:
        return np.flatnonzero(parsed.scores > min_conf)
    thresholds = [limits.get(label, min_conf) for label in parsed.identifiers]
    return np.flatnonzero(parsed.scores > np.array(thresholds))


def _lines(path: str) -> Iterator[str]:
    total = storage.stat(path).size if storage.exists(path) else None
    with (
        open_input(path, "PREDICTIONS") as file,
        tqdm(
            total=total, unit="B", unit_scale=True, desc=f"reading {path}", delay=PROGRESS_DELAY
        ) as bar,
    ):
        for line in file:
            bar.update(len(line))
            yield line.decode()


def _list_faults(what: str, faults: Sequence[str]) -> str:
    more = [f"and {len(faults) - _FAULTS_SHOWN} more"] if len(faults) > _FAULTS_SHOWN else []
    return "\n  ".join([f"{what} cannot be used:", *faults[:_FAULTS_SHOWN], *more])


def read_thresholds(path: str, classes: Sequence[ClassEntry] | None) -> dict[str, float]:
    """Reads a `--class_thresholds` file: one `class,threshold` per line, without a header.

    Args:
        path: the file.
        classes: if given, a class must be one of these, by identifier or name.

    Returns:
        Thresholds in 0..1 by identifier, the label that submissions use.

    Raises:
        UserError: some lines are wrong; lists them.
    """
    known = class_ids(classes) if classes is not None else None
    thresholds: dict[str, float] = {}
    faults = []
    text = read_input_text(path, "--class_thresholds")
    try:
        rows = list(csv.reader(io.StringIO(text, newline=None)))
    except csv.Error as error:
        raise UserError(f"--class_thresholds {path} is not a CSV: {error}.") from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        label, value = (row[0].strip(), _number(row[1])) if len(row) == 2 else ("", None)
        if not label or value is None or not 0 <= value <= 1:
            faults.append(f"line {number}: '{','.join(row)}' is not `class,threshold` in 0..1")
        elif known is not None and label not in known:
            faults.append(f"line {number}: {label} is not in --classes")
        else:
            key = (
                label if known is None or classes is None else classes[known[label] - 1].identifier
            )
            if key in thresholds:
                faults.append(f"line {number}: {label} already has a threshold")
            thresholds[key] = value
    if faults:
        raise UserError(_list_faults(f"--class_thresholds {path}", faults))
    return thresholds


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
