"""Reads Open Images box CSVs (13 columns, relative coordinates) into the one table."""

import io

import numpy as np
import pandas as pd

from detection.preparation.annotations import (
    Annotations,
    PreparationError,
    build_annotations,
)
from detection.preparation.input_files import (
    list_images,
    read_bytes,
    read_classes,
    read_image_list,
    stem,
)
from detection.submission.class_list import ClassEntry

ALL_COLUMNS = (
    *("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax"),
    *("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside"),
)
_NUMBERS = ("XMin", "XMax", "YMin", "YMax", "IsGroupOf")
_COLUMNS = ("ImageID", "LabelName", *_NUMBERS)


def read_open_images(
    path: str,
    *,
    images: str,
    image_list: str | None = None,
    classes: str | None = None,
    include_unlabeled: bool = False,
) -> Annotations:
    """Reads the boxes of one CSV.

    A row without label and coordinates stands for an image without objects. `IsGroupOf` of 1 makes
    a crowd box; -1 means unknown and does not.

    Args:
        path: the CSV; of its 13 columns ImageID, LabelName, XMin, XMax, YMin, YMax and IsGroupOf
            must be there.
        images: the folder of the pictures, <ImageID>.jpg (or ImageID where it has an extension).
        image_list: a file of image ids; exactly those are taken, with boxes or without.
        classes: `MID,name` a line; by default the labels found, in alphabetical order, as their own
            names.
        include_unlabeled: also take every other image file of the folder, as without objects.

    Raises:
        PreparationError: the file is missing, empty, or not such a CSV.
    """
    table = _read_csv(path)
    blank = table["LabelName"].isna() & table[["XMin", "XMax", "YMin", "YMax"]].isna().all(axis=1)
    codes, identifiers = pd.factorize(table["ImageID"])
    names = [str(name) for name in identifiers]
    if image_list is not None:
        wanted = list(dict.fromkeys(stem(name) for name in read_image_list(image_list)))
        rows = {name: row for row, name in enumerate(wanted)}
        codes = np.array([rows.get(name, -1) for name in names], dtype=np.int64)[codes]
        names = wanted
    files = [name if stem(name) != name else f"{name}.jpg" for name in names]
    if include_unlabeled:
        known = set(files)
        others = [file for file in list_images(images) if file not in known]
        names += [stem(file) for file in others]
        files += others
    kept = ~blank.to_numpy() & (codes >= 0)
    table = table[kept]
    labels = table["LabelName"].cat.add_categories("").fillna("")
    return build_annotations(
        images=pd.DataFrame(
            {
                "source_id": names,
                "file": files,
                "height": np.nan,
                "width": np.nan,
            }
        ),
        boxes=pd.DataFrame(
            {
                "image": codes[kept],
                "label": labels.cat.remove_unused_categories(),
                "y1": table["YMin"],
                "x1": table["XMin"],
                "y2": table["YMax"],
                "x2": table["XMax"],
                "is_crowd": table["IsGroupOf"] == 1,
                "area": np.nan,
            }
        ),
        classes=read_classes(classes) if classes else _labels_found(table["LabelName"]),
        normalized=True,
    )


def _labels_found(labels: pd.Series) -> tuple[ClassEntry, ...]:
    return tuple(
        ClassEntry(identifier=name, name=name) for name in sorted(labels.dropna().unique())
    )


def _read_csv(path: str) -> pd.DataFrame:
    content = read_bytes(path, "--annotations")
    header = content[:4096].decode("utf-8-sig", errors="replace").split("\n", 1)[0].strip()
    columns = [column.strip() for column in header.split(",")]
    missing = [column for column in _COLUMNS if column not in columns]
    if not header:
        raise PreparationError(f"--annotations {path} is empty.")
    if missing:
        hint = " Its columns are separated by ';': separate them by ','." if ";" in header else ""
        raise PreparationError(
            f"--annotations {path} lacks the column{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}; its first line is '{header[:200]}'.{hint}"
        )
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            usecols=list(_COLUMNS),
            dtype={"ImageID": "str", "LabelName": "category"},
            encoding="utf-8-sig",
            skipinitialspace=True,
        )
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        raise PreparationError(f"--annotations {path} is not a CSV: {error}.") from error
    if table.empty:
        raise PreparationError(f"--annotations {path} has a header and no row.")
    if table["ImageID"].isna().any():
        row = int(np.flatnonzero(table["ImageID"].isna())[0]) + 2
        raise PreparationError(f"--annotations {path}: line {row} has no ImageID.")
    # What is not a number becomes NaN, which the box checks report.
    numbers = {column: pd.to_numeric(table[column], errors="coerce") for column in _NUMBERS}
    return table.assign(**numbers)
