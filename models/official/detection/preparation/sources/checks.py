"""Checks boxes and images: repairs faults if that is safe, else leaves out, with a reason."""

import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.preparation.sources.annotations import COORDINATES, Finding
from tpudet.trainkit.image_folder import IMAGE_FORMATS
from tpudet.trainkit.images.standardize import (
    ImageError,
    StandardImage,
    inspect,
    standardize_inspected,
)

# Fraction of the frame's side. Smaller overhangs are rounding errors and clipped without a finding;
# a thinner box has no area once its coordinates are float32 fractions of the side.
_ROUNDING = 1e-6
# Larger ones may mean another layout of the boxes; smaller ones are a matter of a pixel or so.
_SLIGHT = 0.02

CLIPPED = "box clipped to the image"  # the reason of a finding
_CLIPPED_SLIGHTLY = f"box clipped to the image by at most {_SLIGHT:.0%} of its side"


class CheckedBoxes(NamedTuple):
    """The usable boxes, in their order, and the findings."""

    boxes: pd.DataFrame
    findings: list[Finding]


class CheckedImage(NamedTuple):
    """An upright image."""

    image: StandardImage
    orientation: int  # by EXIF, of the frame in which its boxes were drawn; 1: upright
    findings: list[Finding]


class ImageRejected(Exception):
    """An image is left out: `reason` is the kind of fault, `detail` describes this case."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


def check_labels(
    boxes: pd.DataFrame, files: pd.Series, class_ids: Mapping[str, int]
) -> CheckedBoxes:
    """Adds the column class_id (int32, from 1).

    Left out: boxes that could not be read, and those whose label is not a class.
    """
    findings: list[Finding] = []
    if "fault" in boxes:
        unread = boxes["fault"].notna().to_numpy()
        findings += _report_unread(boxes[unread], files)
        boxes = boxes[~unread]
    class_id = label_class_ids(boxes["label"], class_ids)
    is_blank = (boxes["label"] == "").to_numpy()
    findings += _report(boxes, is_blank, files, "box without a class", repaired=False)
    is_unknown = (class_id == 0) & ~is_blank
    findings += _report(boxes, is_unknown, files, "unknown class", repaired=False)
    return CheckedBoxes(boxes.assign(class_id=class_id)[class_id > 0], findings)


def label_class_ids(labels: pd.Series, class_ids: Mapping[str, int]) -> np.ndarray:
    """Returns class ids (int32, from 1) of labels, a categorical; 0 for blank and unknown ones."""
    ids = [class_ids.get(str(label), 0) for label in labels.cat.categories]
    return np.array([*ids, 0], dtype=np.int32)[labels.cat.codes.to_numpy()]


def check_boxes(boxes: pd.DataFrame, files: pd.Series, frames: np.ndarray) -> CheckedBoxes:
    """Checks boxes against the frames of their images.

    Left out: boxes whose coordinates are not finite, without width or height, fully outside the
    image, and exact duplicates (equal image, label, corners and crowd flag) except the first.
    Repaired: swapped corners, and boxes partly outside the image (clipped).

    Args:
        boxes: as in `Annotations`.
        files: the file of every image, by row number.
        frames: [images, 2] height and width in the unit of the coordinates; NaN if unknown, in
            which case the borders of the image are not checked.

    Returns:
        Boxes with 0 <= y1 < y2 <= height and 0 <= x1 < x2 <= width.
    """
    findings: list[Finding] = []

    def leave_out(bad: np.ndarray, reason: str) -> None:
        nonlocal boxes
        findings.extend(_report(boxes, bad, files, reason, repaired=False))
        boxes = boxes[~bad]

    leave_out(_any_of_row(~np.isfinite(_corners(boxes))), "box with NaN or infinite coordinates")

    corners = _corners(boxes)
    swapped = _any_of_row(corners[:, :2] > corners[:, 2:])
    findings += _report(boxes, swapped, files, "swapped corners of a box put in order", True)
    corners = np.hstack(
        [np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])]
    )
    boxes = boxes.assign(**dict(zip(COORDINATES, corners.T, strict=True)))

    sides = frames[boxes["image"].to_numpy()]
    slack = _ROUNDING * np.where(np.isnan(sides), 1.0, sides)
    leave_out(_any_of_row(corners[:, 2:] - corners[:, :2] <= slack), "zero-size box")

    boxes, clip_findings = _clip(boxes, files, frames)
    findings += clip_findings
    leave_out(
        boxes.duplicated(["image", "label", *COORDINATES, "is_crowd"]).to_numpy(),
        "exact duplicate of a box",
    )
    return CheckedBoxes(boxes, findings)


def _clip(boxes: pd.DataFrame, files: pd.Series, frames: np.ndarray) -> CheckedBoxes:
    sides = frames[boxes["image"].to_numpy()]
    limits = np.where(np.isnan(sides), np.inf, sides)
    lowest = np.where(np.isnan(sides), -np.inf, 0.0)
    corners = _corners(boxes)
    slack = np.where(np.isnan(sides), 0.0, sides * _ROUNDING)
    starts = np.clip(corners[:, :2], lowest, limits)
    ends = np.clip(corners[:, 2:], lowest, limits)
    outside = _any_of_row(ends - starts <= slack)
    beyond = (corners[:, :2] < lowest - slack) | (corners[:, 2:] > limits + slack)
    findings = _report(boxes, outside, files, "box wholly outside the image", repaired=False)
    clipped = _any_of_row(beyond) & ~outside
    far = (corners[:, :2] < -_SLIGHT * sides) | (corners[:, 2:] > (1 + _SLIGHT) * sides)
    is_far = clipped & _any_of_row(far)
    findings += _report(boxes, is_far, files, CLIPPED, repaired=True)
    findings += _report(boxes, clipped & ~is_far, files, _CLIPPED_SLIGHTLY, repaired=True)
    moved = np.hstack([starts, ends])
    boxes = boxes.assign(**dict(zip(COORDINATES, moved.T, strict=True)))
    return CheckedBoxes(boxes.loc[~outside], findings)


def _any_of_row(faults: np.ndarray | np.bool) -> np.ndarray:
    """[n, k] -> [n]: whether any of the k is true."""
    return np.asarray(faults).any(axis=1).reshape(-1)


def _corners(boxes: pd.DataFrame) -> np.ndarray:
    return boxes[list(COORDINATES)].to_numpy(dtype=np.float64)


def _report(
    boxes: pd.DataFrame, bad: np.ndarray, files: pd.Series, reason: str, repaired: bool
) -> list[Finding]:
    if not bad.any():
        return []
    faulty = boxes.loc[bad]
    names = files.to_numpy()[faulty["image"].to_numpy()]
    columns = (names, faulty["label"], *_corners(faulty).T)
    return [
        Finding(str(name), reason, f"{label} x1 {x1:g} y1 {y1:g} x2 {x2:g} y2 {y2:g}", repaired)
        for name, label, y1, x1, y2, x2 in zip(*columns, strict=True)
    ]


def _report_unread(boxes: pd.DataFrame, files: pd.Series) -> list[Finding]:
    """Reports boxes whose coordinates the reader could not read, with the text that it found."""
    columns = (files.to_numpy()[boxes["image"].to_numpy()], boxes["label"], boxes["fault"])
    return [
        Finding(str(name), "box that cannot be read", f"{label} {fault}", False)
        for name, label, fault in zip(*columns, strict=True)
    ]


def check_image(
    encoded: bytes, *, file: str, height: float, width: float, check_pixels: bool = True
) -> CheckedImage:
    """Converts an image to a format that TensorFlow decodes, upright by its EXIF orientation.

    The declared size says in which frame its boxes were drawn: in that of the stored image if it is
    the stored size and the upright one differs, else upright.

    Args:
        encoded: the content of the file.
        file: its name, for the findings.
        height: declared, in pixels, or NaN.
        width: declared, in pixels, or NaN.
        check_pixels: as for `tpudet.trainkit.images.standardize.inspect`.

    Raises:
        ImageRejected: it is truncated, unreadable, or has another size than declared.
    """
    try:
        inspected = inspect(encoded, check_pixels=check_pixels)
        stored = (inspected.height, inspected.width)
        upright = stored[::-1] if inspected.orientation.value >= 5 else stored
        is_declared = not (math.isnan(height) or math.isnan(width))
        if is_declared and (height, width) not in (upright, stored):
            raise ImageRejected(
                "declared size differs from the file's",
                f"declared {width:g}x{height:g}, file {stored[1]}x{stored[0]}",
            )
        is_drawn_upright = not is_declared or (height, width) == upright
        image = standardize_inspected(encoded, inspected)
    except ImageError as error:
        raise ImageRejected(str(error)) from error
    findings = [Finding(file, repair, "", repaired=True) for repair in image.repairs]
    if not is_drawn_upright:
        reason = "boxes drawn on the image as stored: turned upright with it"
        findings.append(Finding(file, reason, "", repaired=True))
    container = inspected.container
    extension = os.path.splitext(file)[1].lower()
    if IMAGE_FORMATS.get(extension, container) != container:
        reason = f"{container} file named {extension}: read as {container}"
        findings.append(Finding(file, reason, "", repaired=True))
    return CheckedImage(image, 1 if is_drawn_upright else inspected.orientation.value, findings)
