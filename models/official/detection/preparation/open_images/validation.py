"""A small validation set: the first images of every class, with all their boxes of the classes."""

import argparse
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from tpudet.detection.preparation.open_images.default_paths import (
    BLACKLIST,
    CLASSES,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.open_images.review_images import LIST_NAME, write_pictures
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.box_csv import (
    read_boxes,
    select_rows,
    stream_boxes,
    write_boxes,
)
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.preparation.sources.input_files import read_classes, read_text, stem
from tpudet.detection.preparation.sources.open_images import image_file
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.command_line import positive_integer, run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.jobs.steps import Step, run_step

_EXAMPLE = """example:
  scripts/build_validation.py val_part_0.csv validation.csv classes_part_0.csv --num_samples 5 \\
      --blacklist blacklist.txt --image_dir $DATA/validation --viz_directory review

exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written)
"""


class ValidationPick(NamedTuple):
    """Which images stand for which classes."""

    picks: pd.DataFrame  # class_id (from 1), image (ImageID): by class, within it in file order
    kept: np.ndarray  # [rows] bool: rows of the boxes that belong to the validation set
    available: np.ndarray  # [classes] images of each class that are not blacklisted
    blacklisted: int  # images with a box of the classes that the blacklist takes away


def pick_validation(
    boxes: pd.DataFrame,
    classes: Sequence[ClassEntry],
    *,
    num_samples: int,
    blacklist: Sequence[str] = (),
    only_picked_class: bool = False,
) -> ValidationPick:
    """Picks for every class its first images in the order of the file.

    An image may be picked for several classes. All its boxes of any of the classes are kept: where
    only those of the picked class are, detections of its other objects count as false.

    Args:
        boxes: ImageID and LabelName, categoricals, as `read_boxes` gives them.
        classes: the group; labels may be identifiers or names. Boxes of other labels are dropped.
        num_samples: images a class; a class that has fewer gets what there is.
        blacklist: image ids, with or without extension, that are not picked.
        only_picked_class: keep of a picked image the boxes of the classes that it was picked for.
    """
    class_id = label_class_ids(boxes["LabelName"], class_ids(classes)).astype(np.int64)
    images = boxes["ImageID"].cat.categories
    codes = boxes["ImageID"].cat.codes.to_numpy(np.int64)
    spellings = ({name, stem(name), image_file(stem(name))} for name in blacklist)
    is_listed = images.isin(list(set[str]().union(*spellings)))
    is_wanted = (class_id > 0) & ~is_listed[codes]
    passed_over = np.zeros(len(images), bool)
    passed_over[codes[(class_id > 0) & is_listed[codes]]] = True
    # Every pair of class and image once, as one number, in file order within the class.
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
        int(np.count_nonzero(passed_over)),
    )


def build_validation(
    output: str,
    source: str,
    classes: str,
    *,
    num_samples: int,
    blacklist: str | None = None,
    image_directory: str | None = None,
    viz_directory: str | None = None,
    only_picked_class: bool = False,
) -> str:
    """Writes the rows of the picked images and, where asked for, pictures of them to look at.

    Args:
        output: the box CSV to write; text unchanged.
        source: a box CSV.
        classes: a class list.
        num_samples: as `pick_validation`.
        blacklist: a file of image names, one a line; a line that names the file itself is ignored.
        image_directory: where the pictures are; needed for `viz_directory` alone.
        viz_directory: gets one picture a pick, as `write_pictures` names and draws them.
        only_picked_class: as `pick_validation`.

    Returns:
        Counts, and the classes that have fewer images, in words.

    Raises:
        PreparationError: a file cannot be read, no box is of the classes, or pictures to draw are
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
        raise PreparationError(
            f"INPUT {source} has no image with a box of a class of {classes}, blacklisted ones "
            "aside: no validation set can be made."
        )
    del boxes
    rows = pa.Table.from_batches(select_rows(stream_boxes(source, "INPUT"), pick.kept))
    if viz_directory and image_directory:
        write_pictures(viz_directory, image_directory, rows=rows, picks=pick.picks, classes=entries)
    write_boxes(output, [rows])
    return _summary(pick, entries, rows.num_rows, num_samples)


def read_blacklist(path: str) -> list[str]:
    """The image names of a blacklist, one a line; a line that names the list itself is no image.

    Raises:
        PreparationError: the file cannot be read.
    """
    lines = (line.strip() for line in read_text(path, "--blacklist").splitlines())
    return [line for line in lines if line and line != os.path.basename(path)]


def _summary(
    pick: ValidationPick, classes: Sequence[ClassEntry], num_boxes: int, num_samples: int
) -> str:
    num_images = pick.picks["image"].nunique()
    words = f"{num_images} images with {num_boxes} boxes, {num_samples} images a class"
    if pick.blacklisted:
        words += f"; {pick.blacklisted} blacklisted images passed over"
    few = [
        f"{entry.name} {count}"
        for entry, count in zip(classes, pick.available.tolist(), strict=True)
        if count < num_samples
    ]
    if few:
        words += f". WARNING: fewer than that of {len(few)} class(es): {', '.join(few)}"
    return f"{words}."


def validation_step(
    output: str,
    source: str,
    classes: str,
    *,
    num_samples: int = 5,
    blacklist: str | None = None,
    image_directory: str | None = None,
    viz_directory: str | None = None,
    only_picked_class: bool = False,
) -> Step:
    """The step of `build_validation`.

    Raises:
        PreparationError: a viz_directory without an image_directory.
    """
    if viz_directory and not image_directory:
        raise PreparationError("--viz_directory needs --image_dir, where the pictures are.")
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
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="build_validation.py",
        description="Pick some images a class out of a box CSV, as a small validation set.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, text in (
        ("output", storage_path("prepared", "val.csv"), "box CSV to write"),
        ("source", storage_path("prepared", "val_no_groups.csv"), "box CSV"),
        ("classes", data_path(CLASSES), "classes, `MID,name` a line"),
    ):
        metavar = "INPUT" if name == "source" else name.upper()
        parser.add_argument(
            name, metavar=metavar, nargs="?", default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--num_samples", type=positive_integer, default=5, metavar="N", help="images a class (5)"
    )
    parser.add_argument(
        "--blacklist",
        metavar="FILE",
        help=f"images that are not picked, a name a line (default: {BLACKLIST} in $DATA, if there)",
    )
    parser.add_argument(
        "--image_dir",
        default=data_path("validation"),
        metavar="DIR",
        help="folder of the pictures, to be drawn (default: %(default)s)",
    )
    parser.add_argument(
        "--viz_directory",
        metavar="DIR",
        help="write <class>_<image>.jpg here, the boxes drawn; other files there are left alone",
    )
    parser.add_argument(
        "--only_picked_class",
        action="store_true",
        help="keep of an image only the boxes of the classes that it was picked for",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file of other origin")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    usual = data_path(BLACKLIST)
    step = validation_step(
        arguments.output,
        arguments.source,
        arguments.classes,
        num_samples=arguments.num_samples,
        blacklist=arguments.blacklist or (usual if storage.exists(usual) else None),
        image_directory=arguments.image_dir,
        viz_directory=arguments.viz_directory,
        only_picked_class=arguments.only_picked_class,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
