"""Reads YOLO data sets, a data.yaml with images and label files, into `Annotations`.

A label file has a line per object: its class number, from 0, and either `cx cy width height` or the
corners `x y x y ...` of a polygon, all in fractions of the image. Keypoints behind a box are
ignored.
"""

import codecs
import math
import os
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.preparation.sources.annotation_values import read_id, read_number
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    build_annotations,
    image_ids,
    require_fractions,
)
from tpudet.detection.preparation.sources.input_files import (
    composed,
    select_listed,
    spelled_as_in_folder,
)
from tpudet.detection.preparation.sources.listed_classes import list_classes
from tpudet.detection.preparation.sources.yolo_layout import YoloSet, label_paths
from tpudet.trainkit.class_list import class_ids
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage

_READERS = 16  # threads, mostly waiting for files
_IMAGES_TRIED = 100
_COLUMNS = ("image", "label", "y1", "x1", "y2", "x2", "fault", "segmentation")
_NO_LABEL_FILE = "no label file: taken as an image without objects"
_NO_BOX = (math.nan, math.nan, math.nan, math.nan)


class _Line(NamedTuple):
    label: str
    y1: float
    x1: float
    y2: float
    x2: float
    fault: str | None  # what cannot be read
    polygon: list[list[float]] | None  # x, y, ... as fractions


def read_yolo(
    dataset: YoloSet,
    *,
    image_list: str | None = None,
    classes: str | None = None,
    include_segmentation: bool = False,
) -> Annotations:
    """Reads the label files of the images of a data set.

    An image without a label file is one without objects, which is a finding.

    Args:
        dataset: its images.
        image_list: file of image names; only those are taken.
        classes: a class list that replaces the names; they are matched by name.
        include_segmentation: keep polygons, as fractions, for masks.

    Returns:
        Annotations whose class identifiers are the class numbers, or those of the class list.

    Raises:
        UserError: no image has a label file, label files are in pixels, or the class list gives a
            class number to another class.
    """
    listed = list_classes(dataset.classes, classes, dataset.path)
    known = class_ids(dataset.classes).keys() | class_ids(listed.classes).keys()
    rows, unlabelled = _read_label_files(dataset, known)
    table = pd.DataFrame(rows, columns=pd.Index(_COLUMNS)).assign(is_crowd=False, area=np.nan)
    if not include_segmentation:
        table = table.drop(columns="segmentation")
    table = table.assign(label=listed.translate(table["label"].tolist()))
    require_fractions(table, f"--annotations {dataset.path}")
    images = pd.DataFrame(
        {
            "source_id": image_ids(dataset.files),
            "file": dataset.files,
            "height": np.nan,
            "width": np.nan,
        }
    )
    findings = list(_labels_without_image(dataset))
    if image_list is not None:
        images, table, missing = select_listed(images, table, image_list, dataset.folder)
        findings += missing
    without = set(unlabelled).intersection(images["file"])
    findings += [Finding(file, _NO_LABEL_FILE, "", repaired=True) for file in sorted(without)]
    return build_annotations(
        images=images,
        boxes=table,
        classes=listed.classes,
        normalized=True,
        findings=tuple(findings),
    )


def _read_label_files(
    dataset: YoloSet, known: Container[str]
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Returns a row of `_COLUMNS` per line, and the images without a label file."""
    rows: list[tuple[Any, ...]] = []
    unlabelled: list[str] = []
    paths = [os.path.join(dataset.folder, file) for file in dataset.files]
    with ThreadPoolExecutor(_READERS) as pool:
        for row, text in enumerate(pool.map(_read_label_file, _label_places(paths))):
            if text is None:
                unlabelled.append(dataset.files[row])
            lines = [line for line in (text or "").splitlines() if line.strip()]
            rows += [(row, *_parse(line, known, dataset.numbers_of_keypoints)) for line in lines]
    if len(unlabelled) == len(paths):
        raise _no_labels(dataset.path, paths)
    return rows, unlabelled


def _no_labels(place: str, paths: Sequence[str]) -> UserError:
    """The error where none of the images at `paths` has a label file."""
    tried = paths[:_IMAGES_TRIED]
    if not any(map(storage.exists, tried)):
        return UserError(
            f"--annotations {place}: none of the first {len(tried)} images exists, such as "
            f"{paths[0]}. Write them relative to the data set; --images names its folder."
        )
    return UserError(
        f"--annotations {place}: none of the {len(paths)} images has a label file, such as "
        f"{' or '.join(label_paths(paths[0])[::2])}."
    )


def _label_places(images: Sequence[str]) -> Iterator[list[str]]:
    """Yields where the label file of each image may be, accents as the folders have them."""
    accented = {image: label_paths(image) for image in images if not image.isascii()}
    places = [place for own in accented.values() for place in own]
    spelled = dict(zip(places, spelled_as_in_folder("", places), strict=True))
    for image in images:
        yield [spelled.get(place, place) for place in label_paths(image)]


def _read_label_file(places: Sequence[str]) -> str | None:
    for path in places:
        try:
            with storage.open_bytes(path) as file:
                content = file.read()
        except FileNotFoundError:
            continue
        is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return content.decode("utf-16" if is_utf16 else "utf-8-sig", errors="replace")
    return None


def _parse(line: str, known: Container[str], numbers_of_keypoints: int) -> _Line:
    """Reads a line; `known` has the numbers and names of classes."""
    words = line.split()
    label = read_id(words[0]) or ""
    if label not in known and read_number(label) is None:
        number, comma, _ = label.partition(",")
        wrong = "has commas between its words" if comma else "does not begin with a class number"
        return _Line(number, *_NO_BOX, f"'{line.strip()[:60]}' {wrong}", None)
    if numbers_of_keypoints and len(words) == 5 + numbers_of_keypoints:
        words = words[:5]
    numbers = [number for number in map(read_number, words[1:]) if number is not None]
    text = f"'{line.strip()[:60]}'"
    if len(numbers) != len(words) - 1:
        return _Line(label, *_NO_BOX, text, None)
    if len(numbers) not in (4, *range(6, len(numbers) + 1, 2)):
        hint = ", of which the last seems to be a score" if len(numbers) == 5 else ""
        fault = f"{text} has {len(numbers)} numbers behind the class{hint}: a box has 4"
        return _Line(label, *_NO_BOX, fault, None)
    if len(numbers) == 4:
        x, y, width, height = numbers
        corners = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
        return _Line(label, *corners, None, None)
    xs, ys = numbers[::2], numbers[1::2]
    return _Line(label, min(ys), min(xs), max(ys), max(xs), None, [numbers])


def _labels_without_image(dataset: YoloSet) -> Iterator[Finding]:
    """Yields label files in folders of their own that belong to no image."""
    expected: dict[str, set[str]] = {}
    for file in dataset.files:
        path = label_paths(os.path.join(dataset.folder, file))[0]
        folder, name = os.path.split(path)
        expected.setdefault(folder, set()).add(composed(name))
    image_folders = {os.path.dirname(os.path.join(dataset.folder, file)) for file in dataset.files}
    if dataset.is_listed:
        return
    for folder in sorted(expected.keys() - image_folders):
        for name in storage.list_names(folder):
            root, ending = os.path.splitext(name)
            label_file = composed(f"{root}.txt")
            is_known = label_file in expected[folder] or label_file == "classes.txt"
            if ending.lower() == ".txt" and not is_known:
                yield Finding(os.path.join(folder, name), "label file without an image", "", False)
