"""Reads Open Images box CSVs (13 columns, relative coordinates) into `Annotations`."""

import os

import numpy as np
import pandas as pd

from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    build_annotations,
    image_ids,
    require_fractions,
)
from tpudet.detection.preparation.sources.box_csv import CORNER_COLUMNS, read_boxes
from tpudet.detection.preparation.sources.input_files import (
    match_image_list,
    plain_path,
    read_image_list,
    stem,
)
from tpudet.detection.preparation.sources.unlabeled_files import find_unlabeled
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.image_folder import is_image_name

_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax", "IsGroupOf")


def read_open_images(
    path: str,
    *,
    images: str,
    image_list: str | None = None,
    classes: str | None = None,
    include_unlabeled: bool = False,
    what: str = "--annotations",
) -> Annotations:
    """Reads the boxes of one CSV.

    A row without label and coordinates means an image without objects. A box with `IsGroupOf` 1 is
    a crowd box; -1 means unknown and counts as no.

    Args:
        path: the CSV; of its 13 columns, ImageID, LabelName, XMin, XMax, YMin, YMax and IsGroupOf
            are required.
        images: folder of the images, <ImageID>.jpg (or ImageID if it ends as an image).
        image_list: file of image ids; exactly those are taken, with boxes or without.
        classes: class list, one `MID,name` per line; None takes the labels that occur, in
            alphabetical order, with themselves as names.
        include_unlabeled: without an image list, also take all other image files of the folder, as
            images without objects.
        what: the argument that named the CSV, for messages.

    Raises:
        UserError: the file is missing, empty, not a box CSV, or in pixels.
    """
    table = read_boxes(path, what, columns=_COLUMNS)
    blank = table["LabelName"].isna() & table[["XMin", "XMax", "YMin", "YMax"]].isna().all(axis=1)
    codes = table["ImageID"].cat.codes.to_numpy(np.int64)
    names = table["ImageID"].cat.categories.tolist()
    if image_list is not None:
        codes, names = _only_listed(codes, names, image_list, images)
    files = [plain_path(image_file(name)) for name in names]
    findings = ()
    if include_unlabeled and image_list is None:
        files, others, findings = find_unlabeled(images, names, files)
        names += image_ids([*files, *others])[len(files) :]
        files += others
    kept = ~blank.to_numpy() & (codes >= 0)
    table = table[kept]
    labels = table["LabelName"].cat.add_categories("").fillna("")
    boxes = pd.DataFrame(
        {
            "image": codes[kept],
            "label": labels.cat.remove_unused_categories(),
            "is_crowd": table["IsGroupOf"] == 1,
            "area": np.nan,
            **{side: table[column] for side, column in CORNER_COLUMNS.items()},
        }
    )
    require_fractions(boxes, f"{what} {path}", has_formats=what == "--annotations")
    return build_annotations(
        images=pd.DataFrame({"source_id": names, "file": files, "height": np.nan, "width": np.nan}),
        boxes=boxes,
        classes=read_classes(classes) if classes else _labels_found(table["LabelName"]),
        normalized=True,
        findings=findings,
    )


def image_file(image_id: str) -> str:
    """Returns the file name of an image: the id itself if it ends as an image, else with .jpg."""
    return image_id if is_image_name(image_id) else f"{image_id}.jpg"


def _only_listed(
    codes: np.ndarray, names: list[str], image_list: str, directory: str
) -> tuple[np.ndarray, list[str]]:
    """Returns the listed image of each row, -1 for none, [rows]; and the ids of listed images."""
    listed = read_image_list(image_list)
    found = match_image_list(listed, [image_file(name) for name in names], directory)
    wanted = dict.fromkeys(
        names[row] if row >= 0 else _image_id(entry)
        for entry, row in zip(listed, found, strict=True)
    )
    rows = {name: row for row, name in enumerate(wanted)}
    codes = np.array([rows.get(name, -1) for name in names], dtype=np.int64)[codes]
    return codes, list(wanted)


def _image_id(entry: str) -> str:
    """The id of a listed image without a row: its name without folder and .jpg, as ids have it."""
    return stem(entry) if entry.lower().endswith(".jpg") else os.path.basename(entry)


def _labels_found(labels: pd.Series) -> tuple[ClassEntry, ...]:
    return tuple(
        ClassEntry(identifier=name, name=name) for name in sorted(labels.dropna().unique())
    )
