"""Reads boxes from any CSV or Parquet file whose columns the user names, into `Annotations`."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from tpudet.detection.preparation.sources.annotation_values import (
    read_flag,
    read_id,
    read_number,
    read_size,
    sorted_classes,
)
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    build_annotations,
    image_ids,
    require_fractions,
    require_ordered,
    require_pixels,
)
from tpudet.detection.preparation.sources.input_files import (
    find_image_files,
    plain_path,
    select_listed,
)
from tpudet.detection.preparation.sources.unlabeled_files import find_unlabeled
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.csv_columns import MAX_COLUMNS
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.files.parquet_pages import decoded_size, require_own_bytes, text_size

Coordinates = Literal["pixels", "fractions"]

# The ways to give a box: one column with four numbers, or four columns.
BOX_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("xyxy",),
    ("yxyx",),
    ("xywh",),
    ("cxcywh",),
    ("x1", "y1", "x2", "y2"),
    ("x", "y", "w", "h"),
    ("cx", "cy", "w", "h"),
)
_OTHER_COLUMNS = ("image", "class", "width", "height", "crowd")
_ONLY_CLASS = "object"  # of a table without a column of classes
_MAX_EXPANSION = 32  # bytes in memory for each byte of a Parquet file
_SMALL_BYTES = 1 << 28  # below which they are not counted
_NUMBER_MARKS = re.compile(r"[\s,;\[\](){}]+")


def read_table(
    path: str,
    *,
    columns: Mapping[str, str],
    coordinates: Coordinates,
    images: str,
    image_list: str | None = None,
    classes: str | None = None,
    include_unlabeled: bool = False,
) -> Annotations:
    """Reads a row per box; a row without class and box means an image without objects.

    Args:
        path: the CSV (separated by commas, semicolons, tabs or |) or Parquet file.
        columns: names of columns by meaning: image, a box as in BOX_COLUMNS and, where there are
            such columns, class, crowd, and width and height of the image.
        coordinates: unit of the boxes.
        images: folder of the images; the column image has their names, with extension or without.
        image_list: file of image names; only those are taken.
        classes: class list; None takes the classes that occur, with themselves as names.
        include_unlabeled: also take all other image files of the folder, as images without objects.

    Raises:
        UserError: the file cannot be read, lacks a column, or is not in the unit.
    """
    box_keys = _box_keys(columns)
    table = _read_columns(path, list(columns.values()))
    cells = {key: table[name].tolist() for key, name in columns.items()}
    texts = ["" if _is_blank(name) else read_id(name) or str(name) for name in cells["image"]]
    names = [plain_path(text) for text in texts]
    if "" in names:
        raise UserError(f"--annotations {path}: row {names.index('') + 1} names no image.")
    order = {name: row for row, name in enumerate(dict.fromkeys(names))}
    files = find_image_files(images, list(order))
    labels = [_label(value) for value in cells.get("class", [_ONLY_CLASS] * len(names))]
    boxes = _boxes(cells, box_keys, labels, [order[name] for name in names], path)
    findings: Sequence[Finding] = ()
    found: dict[object, str] = {}
    image_table = pd.DataFrame({"file": files, **_sizes(cells, names, order, path)})
    if include_unlabeled:
        files_found, others, findings = find_unlabeled(images, list(order), files)
        found = dict(zip(files, files_found, strict=True))
        image_table = pd.concat([image_table, pd.DataFrame({"file": others})], ignore_index=True)
    image_table["source_id"] = image_ids(image_table["file"].tolist())
    _require_unit(boxes, coordinates, path)
    layouts = "Name the columns that they are: --columns xywh=… or x=…,y=…,w=…,h=…, or corners."
    require_ordered(boxes, f"--annotations {path}", layouts)
    if image_list is not None:
        image_table, boxes, missing = select_listed(image_table, boxes, image_list, images)
        listed = {found.get(file, file) for file in image_table["file"]}
        findings = [finding for finding in findings if finding.file in listed] + missing
    image_table["file"] = image_table["file"].map(lambda file: found.get(file, file))
    return build_annotations(
        images=image_table,
        boxes=boxes,
        classes=read_classes(classes) if classes else _labels_found(labels),
        normalized=coordinates == "fractions",
        findings=tuple(findings),
    )


def _require_unit(boxes: pd.DataFrame, coordinates: Coordinates, path: str) -> None:
    if coordinates == "fractions":
        require_fractions(boxes, f"--annotations {path}")
    else:
        require_pixels(boxes, f"--annotations {path}", "pass --coordinates fractions")


def _box_keys(columns: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the keys of the box; refuses unknown keys and none or two kinds of boxes."""
    known = {*_OTHER_COLUMNS, *(key for keys in BOX_COLUMNS for key in keys)}
    unknown = [key for key in columns if key not in known]
    given = {key for key in columns if key not in _OTHER_COLUMNS}
    kinds = [keys for keys in BOX_COLUMNS if set(keys) == given]
    if unknown or "image" not in columns or not kinds:
        ways = "; ".join(",".join(keys) for keys in BOX_COLUMNS)
        raise UserError(
            f"--columns names {listing(columns)}; it needs image, and one of these for the box: "
            f"{ways}. class, width, height and crowd may follow."
            + (f" Unknown: {listing(unknown)}." if unknown else "")
        )
    names = list(columns.values())
    shared = sorted({name for name in names if names.count(name) > 1})
    if shared:
        raise UserError(f"--columns gives {listing(shared)} several meanings; a column has one.")
    return kinds[0]


def _read_columns(path: str, names: Sequence[str]) -> pd.DataFrame:
    content = read_input(path, "--annotations")
    try:
        if content.startswith(b"PAR1"):
            metadata = pq.read_metadata(pa.BufferReader(content))
            present = metadata.schema.to_arrow_schema().names
        else:
            metadata, present = None, _header(content, path)
        several = sorted({name for name in names if present.count(name) > 1})
        if several:
            raise UserError(
                f"--annotations {path} has more than one column {listing(several)}; give each a "
                "name of its own."
            )
        missing = [name for name in names if name not in present]
        if missing:
            raise UserError(
                f"--annotations {path} lacks the columns {listing(missing)}; it has "
                f"{listing(present, 30)}."
            )
        if metadata is None:
            table = _read_csv(content, present).select(names)
        else:
            table = _read_parquet(content, metadata, names)
        table.validate(full=True)  # Parquet is read without a look at its text
        # Spreadsheets write rows of nothing at the end.
        cells = table.cast(pa.schema(map(_as_text, table.schema))).to_pandas().dropna(how="all")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--annotations {path} is neither Parquet nor a CSV in UTF-8: {error}. Save it as one."
        ) from error
    except _TooLargeError as error:
        raise UserError(
            f"--annotations {path}: its {len(content):,} bytes stand for {error.args[0]:,} or "
            "more, the same values many times. Write it again with no other columns, or as a CSV."
        ) from error
    except pa.ArrowException as error:
        raise UserError(f"--annotations {path} is not a CSV or Parquet file: {error}.") from error
    if cells.empty:
        raise UserError(f"--annotations {path} has no row.")
    return cells


def _read_parquet(content: bytes, metadata: pq.FileMetaData, names: Sequence[str]) -> pa.Table:
    """Returns the columns; raises `_TooLargeError` where they take far more than the file."""
    limit = max(_MAX_EXPANSION * len(content), _SMALL_BYTES)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    file = io.BytesIO(content)
    require_own_bytes(metadata, len(content))
    size = sum(decoded_size(file, group, i) for group in groups for i in range(group.num_columns))
    if size > limit:
        raise _TooLargeError(size)
    # Texts are read as dictionaries, so that one that the file has once is in memory once.
    table = pq.read_table(
        pa.BufferReader(content), columns=names, use_threads=False, read_dictionary=names
    )
    texts = [column for column in table.columns if pa.types.is_dictionary(column.type)]
    size += sum(text_size(chunk) for column in texts for chunk in column.chunks)
    if size > limit:
        raise _TooLargeError(size)
    return table


class _TooLargeError(Exception):
    """Args: bytes of memory."""


def _as_text(field: pa.Field) -> pa.Field:
    """The field of a column, strings where a program wrote their bytes, or each text once."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return field.with_type(pa.string() if is_bytes else kind)


def _header(content: bytes, path: str) -> list[str]:
    if not content.strip():
        raise UserError(f"--annotations {path} is empty; its first line must name the columns.")
    first = next(iter(content.decode("utf-8-sig").splitlines()), "")
    if not first.strip():
        raise UserError(
            f"--annotations {path}: its first line is blank, and must name the columns: delete it."
        )
    try:
        row = next(csv.reader([first], delimiter=_delimiter(first)), [])
    except csv.Error as error:
        raise UserError(f"--annotations {path} is not a CSV: {error}.") from error
    if len(row) > MAX_COLUMNS:
        raise UserError(
            f"--annotations {path} has {len(row):,} columns, and {MAX_COLUMNS:,} at most are read: "
            "write it with those that are needed."
        )
    return [name.strip() for name in row]


def _delimiter(header: str) -> str:
    return max(",;\t|", key=header.count)


def _read_csv(content: bytes, names: Sequence[str]) -> pa.Table:
    """Reads all columns as text; blanks are null."""
    header = content[: 1 << 16].decode("utf-8-sig", errors="replace").splitlines()[0]
    columns = [f"{number} {name}" for number, name in enumerate(names)]  # names may repeat
    table = pc.read_csv(
        pa.BufferReader(content),
        pc.ReadOptions(column_names=columns, skip_rows=1, use_threads=False),
        pc.ParseOptions(delimiter=_delimiter(header), newlines_in_values=True),
        pc.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        ),
    )
    return table.rename_columns(list(names))


def _boxes(
    cells: Mapping[str, list], keys: tuple[str, ...], labels: list[str], rows: list[int], path: str
) -> pd.DataFrame:
    if len(keys) == 1:
        given = [_four(value) for value in cells[keys[0]]]
        blank = [_is_blank(value) for value in cells[keys[0]]]
    else:
        values = list(zip(*(cells[key] for key in keys), strict=True))
        given = [list(four) for four in values]
        blank = [all(map(_is_blank, four)) for four in values]
    numbers = [[read_number(value) for value in four] for four in given]
    faults = [
        None if len(four) == 4 and None not in four else f"{keys[0]} {str(raw)[:60]}"
        for four, raw in zip(numbers, given, strict=True)
    ]
    has_class = "class" in cells  # without it every label is the same
    is_blank = np.array(blank) & ~np.array([has_class and bool(label) for label in labels])
    corners = np.array(
        [[np.nan] * 4 if fault else four for four, fault in zip(numbers, faults, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 4)
    y1, x1, y2, x2 = _to_corners(corners, keys)
    crowds = [read_flag(value) for value in cells.get("crowd", [False] * len(rows))]
    if None in crowds:
        wrong = cells["crowd"][crowds.index(None)]
        raise UserError(
            f"--annotations {path}: the column crowd holds {wrong!r}; it must be 0 or 1."
        )
    table = pd.DataFrame(
        {"image": rows, "label": labels, "y1": y1, "x1": x1, "y2": y2, "x2": x2}
        | {"is_crowd": crowds, "area": np.nan, "fault": faults}
    )
    return table[~is_blank].reset_index(drop=True)


def _to_corners(four: np.ndarray, keys: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Returns y1, x1, y2, x2 of [n, 4] numbers."""
    a, b, c, d = four.T
    if keys in (("xyxy",), ("x1", "y1", "x2", "y2")):
        return b, a, d, c
    if keys == ("yxyx",):
        return a, b, c, d
    if keys in (("xywh",), ("x", "y", "w", "h")):
        return b, a, b + d, a + c
    return b - d / 2, a - c / 2, b + d / 2, a + c / 2


def _four(value: object) -> list:
    """The numbers of a list, or of text such as `[1, 2, 3, 4]` or `1 2 3 4`."""
    if isinstance(value, str):
        return [word for word in _NUMBER_MARKS.split(value) if word]
    if isinstance(value, np.ndarray):  # of Parquet
        return value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


def _label(value: object) -> str:
    return "" if _is_blank(value) else read_id(value) or str(value)


def _is_blank(value: object) -> bool:
    is_missing = value is None or (isinstance(value, float) and np.isnan(value))
    return is_missing or (isinstance(value, str) and not value.strip())


def _sizes(
    cells: Mapping[str, list], names: Sequence[str], order: Mapping[str, int], path: str
) -> dict[str, np.ndarray]:
    """Returns height and width of each image: those of its first row, NaN if not given."""
    sizes = {key: np.full(len(order), np.nan) for key in ("height", "width")}
    for key in sizes.keys() & cells.keys():
        for name, value in zip(reversed(names), reversed(cells[key]), strict=True):
            size = read_size(None if _is_blank(value) else value)
            if size is None:
                raise UserError(
                    f"--annotations {path}: the column {key} holds {value!r}, which is not a "
                    "number of pixels."
                )
            sizes[key][order[name]] = size
    return sizes


def _labels_found(labels: Sequence[str]) -> tuple[ClassEntry, ...]:
    return sorted_classes(ClassEntry(label, label) for label in set(labels) - {""})
