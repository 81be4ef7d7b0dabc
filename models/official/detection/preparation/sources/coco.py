"""Reads a COCO instances JSON (https://cocodataset.org/#format-data) into `Annotations`."""

import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tpudet.detection.preparation.sources.annotation_values import (
    read_flag,
    read_id,
    read_number,
    read_size,
    sorted_classes,
)
from tpudet.detection.preparation.sources.annotations import (
    UNLISTED_IMAGE,
    Annotations,
    Finding,
    build_annotations,
    require_ordered,
    require_pixels,
)
from tpudet.detection.preparation.sources.coco_layout import (
    find_row,
    load_coco,
    require_own_files,
    rows_by_id,
)
from tpudet.detection.preparation.sources.input_files import plain_path, select_listed
from tpudet.detection.preparation.sources.listed_classes import list_classes
from tpudet.detection.preparation.sources.masks import run_lengths_box
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError

_COLUMNS = ("image", "label", "y1", "x1", "y2", "x2", "is_crowd", "area", "fault", "segmentation")
_NO_BOX = (float("nan"),) * 4


def read_coco(
    path: str,
    *,
    images: str = "",
    image_list: str | None = None,
    classes: str | None = None,
    include_segmentation: bool = False,
) -> Annotations:
    """Reads images, boxes and classes; `bbox` x, y, width, height becomes corners in pixels.

    An annotation without bbox gets the box of its polygons or run lengths.

    Args:
        path: the JSON file.
        images: folder of the images.
        image_list: file of image names; only those are taken.
        classes: a class list that replaces the categories; they are matched by name.
        include_segmentation: keep polygons and run lengths, for masks.

    Returns:
        Annotations with classes in the order of the category ids, which may have gaps. `area` is
        the annotation's own, that of the mask.

    Raises:
        UserError: not JSON, or not in COCO's layout; every missing part is named. Or the class list
            gives a category id to another class.
    """
    content = load_coco(path)
    entries = content["images"]
    ids = [read_id(entry["id"]) or "" for entry in entries]
    files = [plain_path(entry["file_name"]) for entry in entries]
    require_own_files(ids, files, path)
    categories = _categories(content["categories"], path)
    listed = list_classes(categories, classes, path)
    table, findings = _boxes(content, rows_by_id(ids), categories)
    where = f"--annotations {path}"
    require_pixels(table, where, "multiply each bbox by the size of its image")
    require_ordered(table, where, "bbox is x, y, width, height, of which the last two are above 0.")
    table = table.assign(label=listed.translate(table["label"].tolist()))
    if not include_segmentation:
        table = table.drop(columns="segmentation")
    image_table = pd.DataFrame(
        {
            "source_id": ids,
            "file": files,
            "height": [read_size(entry.get("height")) for entry in entries],
            "width": [read_size(entry.get("width")) for entry in entries],
        }
    )
    if image_list is not None:
        image_table, table, missing = select_listed(image_table, table, image_list, images)
        findings += missing
    return build_annotations(
        images=image_table,
        boxes=table,
        classes=listed.classes,
        normalized=False,
        findings=tuple(findings),
    )


def _boxes(
    content: Mapping[str, Any], image_rows: dict[str, int], categories: Sequence[ClassEntry]
) -> tuple[pd.DataFrame, list[Finding]]:
    """Returns a row for each annotation of a listed image, and what was repaired or left out."""
    category_rows = rows_by_id([entry.identifier for entry in categories])
    boxes, findings = [], []
    for annotation in content["annotations"]:
        image_id = read_id(annotation["image_id"]) or ""
        row = find_row(image_rows, image_id)
        if row is None:
            detail = f"annotation {annotation.get('id')}"
            findings.append(Finding(f"image_id {image_id}", UNLISTED_IMAGE, detail, False))
            continue
        label = read_id(annotation["category_id"]) or ""
        category = find_row(category_rows, label)
        label = label if category is None else categories[category].identifier
        image = content["images"][row]
        corners, fault, drawn = _corners(annotation, image)
        if drawn:
            reason = f"box without bbox: that of its {drawn}"
            findings.append(Finding(image["file_name"], reason, label, repaired=True))
        is_crowd = bool(read_flag(annotation.get("iscrowd")))
        area = read_number(annotation.get("area"))
        segmentation = annotation.get("segmentation") or None
        if isinstance(segmentation, str):  # which would be the path of an image
            segmentation = None
        boxes.append((row, label, *corners, is_crowd, area, fault, segmentation))
    return pd.DataFrame(boxes, columns=pd.Index(_COLUMNS)), findings


def _corners(
    annotation: Mapping[str, Any], image: Mapping[str, Any]
) -> tuple[tuple[float, ...], str | None, str | None]:
    """Returns y1 x1 y2 x2, what cannot be read of them, and what they were taken from instead."""
    box = annotation.get("bbox")
    if box is None or box == []:
        segmentation = annotation.get("segmentation")
        if around := _around_polygons(segmentation):
            return around, None, "polygons"
        height, width = (read_size(image.get(side)) for side in ("height", "width"))
        if around := run_lengths_box(segmentation, height=height, width=width):
            return around, None, "run lengths"
        return _NO_BOX, "no bbox", None
    numbers = [read_number(value) for value in box] if isinstance(box, Sequence) else []
    if len(numbers) != 4 or None in numbers:
        return _NO_BOX, f"bbox {reprlib.repr(box)}", None
    x, y, width, height = (float(number or 0) for number in numbers)
    return (y, x, y + height, x + width), None, None


def _around_polygons(segmentation: object) -> tuple[float, ...] | None:
    """The corners of the box around polygons, lists of x, y; None for anything else."""
    if not isinstance(segmentation, list) or not segmentation:
        return None
    parts = segmentation if isinstance(segmentation[0], list) else [segmentation]
    numbers = [read_number(value) for part in parts if isinstance(part, list) for value in part]
    values = [number for number in numbers if number is not None]
    if len(values) != len(numbers) or len(values) < 6 or len(values) % 2:
        return None
    xs, ys = values[::2], values[1::2]
    return min(ys), min(xs), max(ys), max(xs)


def _categories(categories: list[dict[str, Any]], path: str) -> tuple[ClassEntry, ...]:
    entries = [
        ClassEntry(identifier=read_id(category["id"]) or "", name=str(category["name"]).strip())
        for category in categories
    ]
    counts = Counter(entry.identifier for entry in entries)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise UserError(
            f"--annotations {path}: category ids are used twice: {', '.join(repeated)}."
        )
    return sorted_classes(entries)
