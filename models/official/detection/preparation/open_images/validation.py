"""Picks a small validation set: the first images of every class."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.open_images.review_images import write_review_images
from tpudet.detection.preparation.sources.box_csv import (
    read_boxes,
    select_rows,
    stream_boxes,
    write_boxes,
)
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.preparation.sources.input_files import stem
from tpudet.detection.preparation.sources.open_images import image_file
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_classes
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.listed_files import LIST_NAME
from tpudet.trainkit.jobs.steps import Step


class ValidationPick(NamedTuple):
    """The images picked for each class."""

    picks: pd.DataFrame  # class_id (from 1) and image (ImageID), by class, then in file order
    kept: np.ndarray  # [rows] bool: rows of the boxes that belong to the validation set
    available: np.ndarray  # [classes] images of each class that are not blacklisted
    blacklisted: int  # blacklisted images with a box of the classes


def pick_validation(
    boxes: pd.DataFrame,
    classes: Sequence[ClassEntry],
    *,
    num_samples: int,
    blacklist: Sequence[str] = (),
    only_picked_class: bool = False,
) -> ValidationPick:
    """Picks the first images of every class, in the order of the file.

    An image may be picked for several classes. All its boxes of any of the classes are kept,
    because detections of unlabelled objects would count as false positives.

    Args:
        boxes: ImageID and LabelName, categoricals, as `read_boxes` returns them.
        classes: the group; labels may be identifiers or names. Boxes with other labels are dropped.
        num_samples: images per class; a class with fewer gets all it has.
        blacklist: image ids, with or without extension, that are not picked.
        only_picked_class: of each picked image, keep only boxes of the classes it was picked for.
    """
    class_id = label_class_ids(boxes["LabelName"], class_ids(classes)).astype(np.int64)
    images = boxes["ImageID"].cat.categories
    codes = boxes["ImageID"].cat.codes.to_numpy(np.int64)
    spellings = ({name, stem(name), image_file(stem(name))} for name in blacklist)
    is_listed = images.isin(list(set[str]().union(*spellings)))
    is_wanted = (class_id > 0) & ~is_listed[codes]
    is_blacklisted = np.zeros(len(images), bool)
    is_blacklisted[codes[(class_id > 0) & is_listed[codes]]] = True
    # Each (class, image) pair once, encoded as one number, in file order within the class.
    pairs = pd.unique(class_id[is_wanted] * len(images) + codes[is_wanted])
    pair_classes, pair_images = np.divmod(pairs, len(images))
    order = np.argsort(pair_classes, kind="stable")
    available = np.bincount(pair_classes, minlength=len(classes) + 1)
    ranks = np.arange(len(pairs)) - np.repeat(np.cumsum(available) - available, available)
    picked = order[ranks < num_samples]
    is_picked = np.zeros(len(images), bool)
    is_picked[pair_images[picked]] = True
    kept = is_wanted & is_picked[codes]
    if only_picked_class:
        kept &= np.isin(class_id * len(images) + codes, pairs[picked])
    return ValidationPick(
        pd.DataFrame({"class_id": pair_classes[picked], "image": images[pair_images[picked]]}),
        kept,
        available[1:],
        int(np.count_nonzero(is_blacklisted)),
    )


def build_validation(
    output: str,
    source: str,
    classes: str,
    *,
    num_samples: int,
    blacklist: str | None,
    image_directory: str | None,
    viz_directory: str | None,
    only_picked_class: bool,
) -> str:
    """Writes the rows of the picked images and, on request, drawings for review.

    Args:
        output: the box CSV to write; text is unchanged.
        source: a box CSV.
        classes: a class list.
        num_samples: as for `pick_validation`.
        blacklist: file of image names, as `read_blacklist` reads it.
        image_directory: folder of the images; only needed for `viz_directory`.
        viz_directory: folder for one drawing per pick, see `write_review_images`.
        only_picked_class: as for `pick_validation`.

    Returns:
        A summary with counts and with the classes that have fewer images.

    Raises:
        UserError: a file cannot be read, no box belongs to the classes, or images to draw are
            missing.
    """
    entries = read_classes(classes)
    corners = ("XMin", "XMax", "YMin", "YMax") if viz_directory else ()
    boxes = read_boxes(source, "INPUT", columns=("ImageID", "LabelName", *corners))
    unwanted = read_blacklist(blacklist) if blacklist else ()
    pick = pick_validation(
        boxes,
        entries,
        num_samples=num_samples,
        blacklist=unwanted,
        only_picked_class=only_picked_class,
    )
    if pick.picks.empty:
        raise UserError(
            f"INPUT {source} has no image with a box of a class of {classes} that is not "
            "blacklisted: no validation set can be made."
        )
    del boxes
    rows = pa.Table.from_batches(select_rows(stream_boxes(source, "INPUT"), pick.kept))
    if viz_directory and image_directory:
        write_review_images(
            viz_directory, image_directory, rows=rows, picks=pick.picks, classes=entries
        )
    write_boxes(output, [rows])
    return _summarize(pick, entries, rows.num_rows, num_samples)


def read_blacklist(path: str) -> list[str]:
    """Reads the image names of a blacklist, one per line; a line with its own name is ignored.

    Raises:
        UserError: the file cannot be read.
    """
    lines = (line.strip() for line in read_input_text(path, "--blacklist").splitlines())
    return [line for line in lines if line and line != os.path.basename(path)]


def _summarize(
    pick: ValidationPick, classes: Sequence[ClassEntry], num_boxes: int, num_samples: int
) -> str:
    num_images = pick.picks["image"].nunique()
    text = f"{num_images} images with {num_boxes} boxes, {num_samples} images per class"
    if pick.blacklisted:
        text += f"; {pick.blacklisted} blacklisted images skipped"
    few = [
        f"{entry.name} {count}"
        for entry, count in zip(classes, pick.available.tolist(), strict=True)
        if count < num_samples
    ]
    if few:
        text += f". WARNING: {len(few)} class(es) have fewer: {', '.join(few)}"
    return f"{text}."


def validation_step(
    output: str,
    source: str,
    classes: str,
    *,
    num_samples: int,
    blacklist: str | None,
    image_directory: str | None,
    viz_directory: str | None,
    only_picked_class: bool,
) -> Step:
    """Returns the step that runs `build_validation`.

    Raises:
        UserError: there is a viz_directory but no image_directory.
    """
    if viz_directory and not image_directory:
        raise UserError("--viz_directory needs --image_dir, the folder of the images.")
    return Step(
        name=f"Pick {os.path.basename(output)}",
        inputs=(source, classes, *([blacklist] if blacklist else [])),
        options={
            "num_samples": num_samples,
            "blacklist": blacklist is not None,
            "viz_directory": viz_directory,
            "only_picked_class": only_picked_class,
        },
        outputs=(output, *([os.path.join(viz_directory, LIST_NAME)] if viz_directory else [])),
        run=lambda: build_validation(
            output,
            source,
            classes,
            num_samples=num_samples,
            blacklist=blacklist,
            image_directory=image_directory,
            viz_directory=viz_directory,
            only_picked_class=only_picked_class,
        ),
        code=STEP_CODE,
    )
