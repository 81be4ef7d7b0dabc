"""The table of images, boxes and classes that every source is read into."""

import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.ops.numpy_boxes import FAR_OUTSIDE
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError


def distinct_pairs(images: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each (image, class) pair once, sorted.

    Args:
        images: [boxes] image of each box, from 0.
        classes: [boxes] class of each box, from 0.

    Returns:
        Images and classes, [pairs] int64 each.
    """
    # One number per pair; a matrix of images and classes would be large and mostly empty. Sorted
    # and compared, because np.unique takes 50 times as long for 12 million pairs.
    stride = np.int64(classes.max(initial=0)) + 1
    keys = np.sort(images * stride + classes)
    keys = keys[np.diff(keys, prepend=-1) > 0]
    return keys // stride, keys % stride


# Corners of a box, in pixels of the declared frame, or in 0..1 if `normalized`.
COORDINATES = ("y1", "x1", "y2", "x2")
_FRACTION = 1.5  # boxes in pixels that all end below it are fractions
_MIN_SWAPPED = 2  # boxes; a single one is more likely a slip than another layout
# Reasons of findings.
MISSING_FILE = "missing file"
UNLISTED_IMAGE = "box of an image that is not listed"


class Finding(NamedTuple):
    """A fault in the data that was repaired, or whose image or box was left out."""

    file: str  # of the image
    reason: str  # kind of fault, without numbers, so that findings can be counted
    detail: str  # description of this case; may be empty
    repaired: bool  # False: left out


class Annotations(NamedTuple):
    """Images, their boxes and the classes.

    `images`, one row per image: source_id (str), file (str, relative to the image directory),
    height and width (float64, pixels as declared by the annotations, NaN if not declared).

    `boxes`, one row per box, ordered by image: image (int64, row number in `images`), label
    (categorical, the source's own class label), y1 x1 y2 x2 (float64), is_crowd (bool), area
    (float64, pixels^2; NaN means that of the mask or else of the box) and, if masks are wanted,
    segmentation (polygons or run lengths in COCO's form, the path of an image, or None). A reader
    may add lacks_mask (bool): a region to ignore, as crowds are, because nobody drew its mask; and
    fault (str or None): the text that it could not read as coordinates, which are NaN then.
    """

    images: pd.DataFrame
    boxes: pd.DataFrame
    classes: tuple[ClassEntry, ...]
    normalized: bool
    findings: tuple[Finding, ...]  # of the reader itself

    def class_ids(self) -> dict[str, int]:
        """Maps every identifier and name of a class to its id, from 1."""
        return class_ids(self.classes)


def build_annotations(
    *,
    images: pd.DataFrame,
    boxes: pd.DataFrame,
    classes: tuple[ClassEntry, ...],
    normalized: bool,
    findings: tuple[Finding, ...] = (),
) -> Annotations:
    """Converts a reader's columns to the types of the table and merges duplicate images.

    Two rows of `images` with the same file and declared size become one with the boxes of both, as
    a repair. If their declared sizes differ, the later row is left out with its boxes.

    Raises:
        UserError: there are no images or no classes.
    """
    if images.empty:
        raise UserError("The annotations list no images.")
    if not classes:
        lack = "define none" if len(boxes) else "have no boxes"
        raise UserError(f"No classes are known, as the annotations {lack}: pass --classes.")
    images = images.astype({"height": "float64", "width": "float64"}).reset_index(drop=True)
    boxes = boxes.astype(
        {"image": "int64", "label": "category", "is_crowd": "bool", "area": "float64"}
        | dict.fromkeys(COORDINATES, "float64")
    )
    images, boxes, twice = _merge_duplicates(images, boxes)
    boxes = boxes.sort_values("image", kind="stable", ignore_index=True)
    return Annotations(images, boxes, classes, normalized, findings + twice)


def rename_files(annotations: Annotations, files: Sequence[str]) -> Annotations:
    """Returns the images with other file names; rows of one file become one, as a reader's do."""
    if annotations.images["file"].tolist() == list(files):
        return annotations
    images, boxes, twice = _merge_duplicates(
        annotations.images.assign(file=list(files)), annotations.boxes
    )
    boxes = boxes.sort_values("image", kind="stable", ignore_index=True)
    findings = annotations.findings + twice
    return annotations._replace(images=images, boxes=boxes, findings=findings)


def _merge_duplicates(
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


def require_fractions(boxes: pd.DataFrame, where: str, *, has_formats: bool = True) -> None:
    """Refuses boxes in pixels where fractions of the image are expected.

    Nearly all of them would be left out, or clipped to the whole image.

    Args:
        boxes: with the columns y2 and x2.
        where: the file or folder and the argument that named it.
        has_formats: whether the command has --format, which the message names.

    Raises:
        UserError: most boxes reach far beyond 1.
    """
    beyond = (boxes[["y2", "x2"]] > FAR_OUTSIDE).any(axis=1)
    if beyond.mean() > 0.5:
        table = "; a table may be read with --format table --coordinates pixels"
        raise UserError(
            f"{where} is in pixels: {beyond.sum()} of {len(beyond)} boxes end beyond "
            f"{FAR_OUTSIDE:g}, where fractions of the image, 0..1, are expected. Divide by the "
            f"sizes of the images{table if has_formats else ''}."
        )


def require_pixels(boxes: pd.DataFrame, where: str, advice: str) -> None:
    """Refuses boxes in fractions of the image where pixels are expected.

    Args:
        boxes: with the columns of corners; those without width or height do not count.
        where: the file or folder and the argument that named it.
        advice: a clause on what to do.

    Raises:
        UserError: no box ends beyond the first pixels.
    """
    has_area = (boxes["y2"] > boxes["y1"]) & (boxes["x2"] > boxes["x1"])
    if has_area.any() and (boxes.loc[has_area, ["y2", "x2"]] <= _FRACTION).all(axis=None):
        raise UserError(
            f"{where}: no box ends beyond {_FRACTION:g}, so they are fractions of the image and "
            f"not pixels: {advice}."
        )


def require_ordered(boxes: pd.DataFrame, where: str, advice: str) -> None:
    """Refuses boxes most of which end before they begin: of x, y, width, height as corners.

    Single ones are put in order later, as a repair.

    Args:
        boxes: with the columns of corners.
        where: the file or folder and the argument that named it.
        advice: a sentence on what to do.

    Raises:
        UserError: at least two boxes, and more than half of all, have swapped corners.
    """
    swapped = (boxes["y2"] < boxes["y1"]) | (boxes["x2"] < boxes["x1"])
    if swapped.sum() >= _MIN_SWAPPED and swapped.mean() > 0.5:
        raise UserError(
            f"{where}: {swapped.sum()} of {len(swapped)} boxes end left of where they begin, or "
            f"above it, as x, y, width, height do when they are read as corners x1, y1, x2, y2. "
            f"{advice}"
        )


def image_ids(files: Sequence[str]) -> list[str]:
    """Returns the names of image files without extension, a different one for each file.

    If names repeat, they are with folders; of files whose names differ in the extension alone, with
    that too.
    """
    paths = [os.path.splitext(file)[0] for file in files]
    names = [os.path.basename(path) for path in paths]
    distinct = set(files)
    if len(set(names)) == len(distinct):
        return names
    counts = Counter(os.path.splitext(file)[0] for file in distinct)
    return [path if counts[path] == 1 else file for path, file in zip(paths, files, strict=True)]


def missing_image(file: str, num_boxes: int) -> Finding:
    """Returns the finding that an image is left out with its boxes, because its file is missing."""
    boxes = "1 box" if num_boxes == 1 else f"{num_boxes} boxes"
    return Finding(file, MISSING_FILE, f"with {boxes}", repaired=False)


def take_images(annotations: Annotations, rows: np.ndarray) -> Annotations:
    """Returns the images `rows` (row numbers, repeats allowed) in that order, with their boxes.

    Takes memory for these images only. The reader's findings are not copied.
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
