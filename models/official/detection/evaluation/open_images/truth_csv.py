"""Reads the CSV files of the Open Images Challenge's ground truth as columns.

Columns of text are arrays of objects: NumPy's own strings would make every row as long as the
longest, gigabytes for the masks of a split.

Functions take the content of a file, from any file system; the path is for messages.
"""

import csv
import io
import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.ops.numpy_boxes import FAR_OUTSIDE
from tpudet.detection.submission.errors import NUM_SHOWN
from tpudet.detection.submission.open_images_csv import MAX_WORD_BYTES
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.csv_columns import too_many_columns

_SIDES = ("YMin", "XMin", "YMax", "XMax")


class TruthFileError(UserError):
    """A file of the ground truth cannot be used."""


class MaskTexts(NamedTuple):
    """The masks of n boxes as text."""

    # [n] object, str: base64 of zlib of COCO RLE counts; "" for a box without mask
    texts: np.ndarray
    sizes: np.ndarray  # [n, 2] int64, height and width in pixels; 0 without mask
    lines: np.ndarray  # [n] int64, in the file


class BoxRows(NamedTuple):
    """A box CSV: the n boxes in it, and every image that has a row. Boxes in 0..1, y1 x1 y2 x2."""

    all_image_ids: np.ndarray  # [rows] object, str
    image_ids: np.ndarray  # [n] object, str
    labels: np.ndarray  # [n] object, str
    boxes: np.ndarray  # [n, 4] float64
    is_group_of: np.ndarray  # [n] bool
    masks: MaskTexts | None
    notes: list[str]  # for the user


class ImageLabels(NamedTuple):
    """Verified labels of images."""

    image_ids: np.ndarray  # [n] object, str
    labels: np.ndarray  # [n] object, str
    is_positive: np.ndarray  # [n] bool
    num_by_machines: int  # rows left out, which are not verified


def read_box_rows(data: bytes, path: str, *, with_masks: bool = False) -> BoxRows:
    """Reads a box CSV.

    Args:
        data: ImageID, LabelName, XMin, XMax, YMin, YMax are needed, IsGroupOf is used if it is
            there, and other columns are ignored. A row that is blank but for its ImageID is an
            image without objects.
        path: of the file.
        with_masks: whether the columns ImageWidth, ImageHeight and Mask are read too.

    Raises:
        TruthFileError: it is not such a file; names the first ten bad rows and counts all.
    """
    mask_columns = ("ImageWidth", "ImageHeight", "Mask") if with_masks else ()
    table = _read(data, path, ("ImageID", "LabelName", *_SIDES, *mask_columns))
    notes = []
    if "IsGroupOf" not in table:
        notes.append(f"{path} has no column IsGroupOf: no box is group-of")
        table["IsGroupOf"] = ""
    is_blank = (table[["LabelName", *_SIDES]] == "").all(axis=1).to_numpy()
    if is_blank.all():
        raise TruthFileError(f"{path} has no box")
    boxes = _numbers(table, _SIDES)
    is_group_of = table["IsGroupOf"].isin(("1", "1.0")).to_numpy()
    unknown_flag = ~table["IsGroupOf"].isin(("1", "0", "-1", "", "1.0", "0.0")).to_numpy()
    mistakes = [
        ((table["ImageID"] == "").to_numpy(), "no ImageID"),
        (~is_blank & (table["LabelName"] == "").to_numpy(), "no LabelName"),
        *_long_words(table),
        (~is_blank & ~np.isfinite(boxes).all(axis=1), "a coordinate is not a number"),
        (~is_blank & (boxes[:, 2:] < boxes[:, :2]).any(axis=1), "XMax < XMin or YMax < YMin"),
        (~is_blank & unknown_flag, "IsGroupOf is not 1, 0, -1 or blank"),
    ]
    sizes = np.zeros((len(table), 2), np.int64)
    if with_masks:
        has_mask = (table["Mask"] != "").to_numpy()
        found = _numbers(table, ("ImageHeight", "ImageWidth"))
        is_size = ((found >= 1) & (found == np.floor(found)) & (found < 1 << 20)).all(axis=1)
        mistakes.append((has_mask & ~is_size, "ImageWidth or ImageHeight is not a whole number"))
        sizes[has_mask & is_size] = found[has_mask & is_size]
    _require_good(data, path, mistakes)
    num_beyond = np.count_nonzero(boxes[~is_blank].max(axis=1, initial=0.0) > FAR_OUTSIDE)
    num_boxes = np.count_nonzero(~is_blank)
    if 2 * num_beyond > num_boxes:
        raise TruthFileError(
            f"{path} is in pixels: {num_beyond} of {num_boxes} boxes reach beyond "
            f"{FAR_OUTSIDE:g}; fractions of the image, 0..1, are expected"
        )
    kept = ~is_blank
    masks = None
    if with_masks:
        texts = table["Mask"].to_numpy(object)[kept]
        masks = MaskTexts(texts, sizes[kept], _line_numbers(data, len(table))[kept])
    all_ids = table["ImageID"].to_numpy(object)
    labels = table["LabelName"].to_numpy(object)[kept]
    return BoxRows(all_ids, all_ids[kept], labels, boxes[kept], is_group_of[kept], masks, notes)


def read_image_labels(data: bytes, path: str) -> ImageLabels:
    """Reads the verified labels of images.

    Args:
        data: ImageID and LabelName are needed, and one of Confidence (1: present, 0: absent) and
            Source. Without Confidence all labels are present. Rows whose Source is `machine` are
            not verified and are left out, whatever their Confidence.
        path: of the file.

    Raises:
        TruthFileError: it is not such a file; names the first ten bad rows and counts all.
    """
    table = _read(data, path, ("ImageID", "LabelName"))
    if "Confidence" not in table and "Source" not in table:
        raise TruthFileError(
            f"{path} has neither Confidence nor Source; its columns are {', '.join(table.columns)}"
        )
    is_machine = np.zeros(len(table), bool)
    if "Source" in table:
        is_machine = (table["Source"].str.lower() == "machine").to_numpy()
    confidence = np.ones(len(table))
    if "Confidence" in table:
        confidence = _numbers(table, ("Confidence",))[:, 0]
    is_wrong = ~is_machine & ~np.isin(confidence, (0, 1))
    what = "Confidence is neither 1 (verified as present) nor 0 (verified as absent)"
    is_blank = (table[["ImageID", "LabelName"]] == "").any(axis=1).to_numpy()
    blank = (is_blank, "no ImageID or no LabelName")
    _require_good(data, path, [blank, *_long_words(table), (is_wrong, what)])
    ids, labels = (table[name].to_numpy(object)[~is_machine] for name in ("ImageID", "LabelName"))
    return ImageLabels(ids, labels, confidence[~is_machine] == 1, int(is_machine.sum()))


def _read(data: bytes, path: str, required: Sequence[str]) -> pd.DataFrame:
    """All columns as stripped text."""
    if fault := too_many_columns(data):
        raise TruthFileError(f"{path} {fault}")
    try:
        head = data[: 1 << 16].decode("utf-8-sig", "replace").lstrip().split("\n")[0]
        names = [name.strip() for name in next(csv.reader([head.strip()]), [])]
        missing = [name for name in required if name not in names]
        if missing:
            shown = head.strip()[:200]
            raise TruthFileError(f"{path} lacks {', '.join(missing)}; its first line is {shown!r}")
        with warnings.catch_warnings():
            # Otherwise pandas only warns of rows with more fields than the header has.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                io.BytesIO(data),
                dtype=str,
                keep_default_na=False,
                encoding="utf-8-sig",
                index_col=False,
                on_bad_lines="error",
            )
    except pd.errors.ParserWarning as error:
        raise TruthFileError(f"{path} has rows with more fields than its header") from error
    except (ValueError, UnicodeError, csv.Error) as error:  # pandas' parser errors are ValueErrors
        if isinstance(error, TruthFileError):
            raise
        raise TruthFileError(f"{path} is not a CSV: {error}") from error
    table.columns = [name.strip() for name in table.columns]
    if twice := table.columns[table.columns.duplicated()].tolist():
        raise TruthFileError(f"{path} has the column {twice[0][:80]!r} twice in its header")
    fault = f"fewer fields than the {len(table.columns)} of the header"
    _require_good(data, path, [(_short_rows(data, len(table.columns)), fault)])
    for name in table.columns:
        table[name] = table[name].str.strip()
    return table


def _short_rows(data: bytes, num_fields: int) -> np.ndarray:
    """[rows] bool: those with fewer fields, as of a file that was cut; pandas adds blank ones."""
    unquoted = re.sub(rb'"[^"]*"', b"x", data) if b'"' in data else data
    counts = [line.count(b",") + 1 for line in unquoted.splitlines() if line.strip()]
    return np.array(counts[1:], np.int64) < num_fields


def _long_words(table: pd.DataFrame) -> list[tuple[np.ndarray, str]]:
    """The rows whose image id or label no submission could have."""
    found = []
    for name in ("ImageID", "LabelName"):
        sizes = np.array([len(text.encode()) for text in table[name]], np.int64)
        found.append((sizes > MAX_WORD_BYTES, f"{name} is longer than {MAX_WORD_BYTES} bytes"))
    return found


def _numbers(table: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """[rows, columns] float64, NaN for a value that is not a number."""
    return np.stack(
        [pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64) for name in columns],
        axis=1,
    )


def _require_good(data: bytes, path: str, mistakes: Sequence[tuple[np.ndarray, str]]) -> None:
    """Raises an error that names the rows with mistakes."""
    bad: dict[int, list[str]] = {}
    for is_bad, what in mistakes:
        for row in np.flatnonzero(is_bad).tolist():
            bad.setdefault(row, []).append(what)
    if bad:
        lines = _line_numbers(data, max(bad) + 1)
        rows = sorted(bad)[:NUM_SHOWN]
        shown = "\n".join(f"  {path}, line {lines[row]}: {'; '.join(bad[row])}" for row in rows)
        more = f"\n  … and {len(bad) - len(rows)} more" if len(bad) > len(rows) else ""
        noun = "row" if len(bad) == 1 else "rows"
        raise TruthFileError(f"{len(bad)} bad {noun}:\n{shown}{more}")


def _line_numbers(data: bytes, count: int) -> np.ndarray:
    """[count] int64: the lines of the first rows; blank lines have no row."""
    lines = [number for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    return np.array(lines[1 : count + 1], np.int64)
