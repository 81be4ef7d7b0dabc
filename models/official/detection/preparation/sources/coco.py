"""Reads a COCO instances JSON (https://cocodataset.org/#format-data) into `Annotations`."""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tpudet.detection.preparation.sources.annotations import Annotations, Finding, build_annotations
from tpudet.detection.preparation.sources.input_files import read_image_list, stem
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError, require_utf8
from tpudet.trainkit.files.inputs import read_input_text

_NO_BOX = (float("nan"),) * 4


def read_coco(
    path: str,
    *,
    image_list: str | None = None,
    classes: str | None = None,
    include_segmentation: bool = False,
) -> Annotations:
    """Reads images, boxes and classes; `bbox` x, y, width, height becomes corners in pixels.

    Args:
        path: the JSON file.
        image_list: file of image names; only those are taken.
        classes: a class list that replaces the categories; its identifiers are category ids.
        include_segmentation: keep polygons and run lengths, for masks.

    Returns:
        Annotations with classes in the order of the category ids, which may have gaps. `area` is
        the annotation's own, that of the mask.

    Raises:
        UserError: not JSON, or not in COCO's layout; every missing part is named.
    """
    content = _load(path)
    entries = content["images"]
    rows = {entry["id"]: row for row, entry in reversed(list(enumerate(entries)))}
    boxes, findings = [], []
    for annotation in content["annotations"]:
        row = rows.get(annotation["image_id"])
        if row is None:
            detail = f"annotation {annotation.get('id')}"
            name = f"image_id {annotation['image_id']}"
            findings.append(Finding(name, "box of an image that is not listed", detail, False))
        else:
            boxes.append(_box_row(row, annotation, include_segmentation))
    columns = ["image", "label", "y1", "x1", "y2", "x2", "is_crowd", "area", "segmentation"]
    table = pd.DataFrame(boxes, columns=pd.Index(columns))
    if not include_segmentation:
        table = table.drop(columns="segmentation")
    images = pd.DataFrame(
        {
            "source_id": [str(entry["id"]) for entry in entries],
            "file": [entry["file_name"] for entry in entries],
            "height": [entry.get("height") for entry in entries],
            "width": [entry.get("width") for entry in entries],
        }
    )
    if image_list is not None:
        images, table, missing = _select(images, table, read_image_list(image_list))
        findings += missing
    return build_annotations(
        images=images,
        boxes=table,
        classes=read_classes(classes) if classes else _categories(content["categories"], path),
        normalized=False,
        findings=tuple(findings),
    )


def _box_row(row: int, annotation: Mapping[str, Any], include_segmentation: bool) -> tuple:
    box = annotation.get("bbox")
    if isinstance(box, Sequence) and len(box) == 4 and all(map(_is_number, box)):
        x, y, width, height = box
        corners = (y, x, y + height, x + width)
    else:
        corners = _NO_BOX  # reported with the other boxes that are not numbers
    area = annotation.get("area")
    area = area if _is_number(area) else float("nan")
    segmentation = annotation.get("segmentation") or None if include_segmentation else None
    label = str(annotation["category_id"])
    return (row, label, *corners, bool(annotation.get("iscrowd", 0)), area, segmentation)


def _is_number(value: object) -> bool:
    """Whether a value is a number that fits a float."""
    try:
        return _is_of(value, (int, float)) and math.isfinite(float(value))  # pyright: ignore
    except OverflowError:
        return False


def _is_of(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # an int to Python
        return False
    return isinstance(value, kinds) and (not isinstance(value, int) or abs(value) < 2**63)


_KINDS: dict[type, str] = {int: "number", str: "string"}


def _load(path: str) -> dict[str, Any]:
    text = read_input_text(path, "--annotations")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # also lists in lists in lists
        raise UserError(f"--annotations {path} is not JSON: {error}.") from error
    size = (int, float, type(None))
    needed = {
        "images": {"id": (int, str), "file_name": (str,), "height": size, "width": size},
        "annotations": {"image_id": (int, str), "category_id": (int, str)},
        "categories": {"id": (int, str), "name": (int, str)},
    }
    if not isinstance(content, dict):
        raise UserError(f"--annotations {path} is not COCO JSON: it is not a mapping.")
    faults = []
    for section, keys in needed.items():
        entries = content.get(section)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            faults.append(f"no list '{section}'")
            continue
        for key, kinds in keys.items():
            # A size that is missing is null.
            values = [entry[key] for entry in entries if key in entry]
            lacking = 0 if type(None) in kinds else len(entries) - len(values)
            if lacking:
                faults.append(f"{lacking} of {len(entries)} entries in '{section}' lack '{key}'")
            wrong = [value for value in values if not _is_of(value, kinds)]
            if wrong:
                faults.append(
                    f"'{key}' of {len(wrong)} of {len(entries)} entries in '{section}' is no "
                    f"{_KINDS[kinds[0]]}, such as {reprlib.repr(wrong[0])}"
                )
    if faults:
        raise UserError(f"--annotations {path} is not COCO JSON: {'; '.join(faults)}.")
    for section, key in (("images", "file_name"), ("images", "id"), ("categories", "name")):
        require_utf8((str(entry[key]) for entry in content[section]), f"'{key}' of {path}")
    return content


def _categories(categories: list[dict[str, Any]], path: str) -> tuple[ClassEntry, ...]:
    ordered = sorted(
        categories, key=lambda category: (isinstance(category["id"], str), category["id"])
    )
    identifiers = Counter(str(category["id"]) for category in ordered)
    repeated = sorted(name for name, count in identifiers.items() if count > 1)
    if repeated:
        raise UserError(
            f"--annotations {path}: category ids are used twice: {', '.join(repeated)}."
        )
    return tuple(
        ClassEntry(identifier=str(category["id"]), name=str(category["name"]))
        for category in ordered
    )


def _select(
    images: pd.DataFrame, boxes: pd.DataFrame, names: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, list[Finding]]:
    wanted = {stem(name) for name in names}
    stems = images["file"].map(stem)
    kept = images[stems.isin(wanted)]
    numbers = pd.Series(range(len(kept)), index=kept.index)
    boxes = boxes[boxes["image"].isin(kept.index)]
    boxes = boxes.assign(image=numbers.loc[boxes["image"]].to_numpy())
    missing = sorted(wanted - set(stems))
    findings = [
        Finding(name, "in the image list, not in the annotations", "", False) for name in missing
    ]
    return kept.reset_index(drop=True), boxes, findings
