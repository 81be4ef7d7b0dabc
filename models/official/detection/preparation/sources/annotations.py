"""The one table that every source is read into, and that everything after it works on."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError


def distinct_pairs(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an image and a class once, ordered by both.

    Args:
        images: [boxes] image of each box, from 0.
        classes: [boxes] class of each box, from 0.

    Returns:
        Images and classes, [pairs] int64 each.
    """
    # One number a pair: a table of all classes by all images would be as large and mostly empty.
    # Sorted and compared, because np.unique, which hashes, takes 50 times as long for 12 million.
    stride = np.int64(classes.max(initial=0)) + 1
    keys = np.sort(images * stride + classes)
    keys = keys[np.diff(keys, prepend=-1) > 0]
    return keys // stride, keys % stride


# A box is `y1 x1 y2 x2`: pixels of the declared frame, or 0..1 where `normalized` says so.
COORDINATES = ("y1", "x1", "y2", "x2")
MISSING_FILE = "missing file"  # the reason of such a finding


class PreparationError(UserError):
    """An input or an output cannot be used at all; the message says what to do."""


class Finding(NamedTuple):
    """One thing in the data that was repaired or left out."""

    file: str  # the image it concerns
    reason: str  # the kind of fault, without numbers, so that it can be counted
    detail: str  # this case in particular; may be empty
    repaired: bool  # False: left out


class Annotations(NamedTuple):
    """Images, their boxes and the classes.

    `images`, one row an image: source_id (str), file (str, relative to the image directory),
    height and width (float64, pixels that the annotations declare; NaN where they do not).

    `boxes`, one row a box, ordered by image: image (int64, row number in `images`), label
    (categorical, the source's own word for the class), y1 x1 y2 x2 (float64), is_crowd (bool), area
    (float64, pixels; NaN: that of the box), and where masks were asked for segmentation (polygons
    or run lengths as COCO writes them; None where there is none).
    """

    images: pd.DataFrame
    boxes: pd.DataFrame
    classes: tuple[ClassEntry, ...]
    normalized: bool
    findings: tuple[Finding, ...]  # what the reader itself had to repair or leave out

    def class_ids(self) -> dict[str, int]:
        """From every label that names a class, its identifier or its name, to its id from 1."""
        return class_ids(self.classes)


def build_annotations(
    *,
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: tuple[ClassEntry, ...],
    normalized: bool,
    findings: tuple[Finding, ...] = (),
) -> Annotations:
    """Brings a reader's columns to the types of the table and joins images that are listed twice.

    Two rows of `images` with the same file and declared size become one that has the boxes of both,
    which is a repair; where their declared sizes differ the later row is left out with its boxes.

    Raises:
        PreparationError: there is no image, or no class.
    """
    if images.empty:
        raise PreparationError("The annotations name no image at all.")
    if not classes:
        raise PreparationError("No class is known: the annotations hold no box; give --classes.")
    images = images.astype({"height": "float64", "width": "float64"}).reset_index(drop=True)
    boxes = boxes.astype(
        {"image": "int64", "label": "category", "is_crowd": "bool", "area": "float64"}
        | dict.fromkeys(COORDINATES, "float64")
    )
    images, boxes, twice = _join_repeated(images, boxes)
    boxes = boxes.sort_values("image", kind="stable", ignore_index=True)
    return Annotations(images, boxes, classes, normalized, findings + twice)


def _join_repeated(
    images: pd.DataFrame, boxes: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Finding, ...]]:
    repeated = images["file"].duplicated()
    if not repeated.any():
        return images, boxes, ()
    first_rows = pd.Series(images.index, index=images["file"])
    first_rows = first_rows[~first_rows.index.duplicated()]
    target = first_rows.loc[images["file"]].to_numpy().copy()
    findings = []
    for row in np.flatnonzero(repeated):
        sizes = images.loc[[target[row], row], ["height", "width"]].to_numpy()
        same = np.array_equal(sizes[0], sizes[1], equal_nan=True)
        what = "its boxes joined" if same else "with another size; the later entry and its boxes"
        detail = f"entry {images.at[row, 'source_id']}"
        file = str(images.at[row, "file"])
        findings.append(Finding(file, f"image listed twice: {what}", detail, repaired=same))
        if not same:
            target[row] = -1
    numbers = np.cumsum(~repeated.to_numpy()) - 1  # of the rows that stay
    moved = target[boxes["image"].to_numpy()]
    boxes = boxes[moved >= 0].assign(image=numbers[moved[moved >= 0]])
    return images[~repeated].reset_index(drop=True), boxes, tuple(findings)


def missing_image(file: str, num_boxes: int) -> Finding:
    """That an image is left out, with its boxes, because its file is not there."""
    boxes = "1 box" if num_boxes == 1 else f"{num_boxes} boxes"
    return Finding(file, MISSING_FILE, f"with {boxes}", repaired=False)


def take_images(annotations: Annotations, rows: np.ndarray) -> Annotations:
    """The images `rows` (row numbers, repeats allowed) in that order, each with its boxes.

    Costs memory for what is taken only. The reader's findings stay with the whole.
    """
    owners = annotations.boxes["image"].to_numpy()
    first = np.searchsorted(owners, rows)
    counts = np.searchsorted(owners, rows, side="right") - first
    before = np.cumsum(counts) - counts  # boxes of the images taken earlier
    picked = np.arange(counts.sum()) + np.repeat(first - before, counts)
    boxes = annotations.boxes.iloc[picked].reset_index(drop=True)
    return annotations._replace(
        images=annotations.images.iloc[rows].reset_index(drop=True),
        boxes=boxes.assign(image=np.repeat(np.arange(len(rows)), counts)),
        findings=(),
    )
