"""Command: an Open Images box CSV, for the classes of a part -> balanced TFRecords."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpudet.detection.preparation.open_images.default_paths import data_path, storage_path
from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.plan import Plan, plan_shards
from tpudet.detection.preparation.records.subsets import (
    SPLITS,
    balance_images,
    leave_out_missing,
    select_classes,
)
from tpudet.detection.preparation.records.write_sets import (
    add_writing_arguments,
    check_balance,
    write_sets,
)
from tpudet.detection.preparation.sources.annotations import Annotations
from tpudet.detection.preparation.sources.input_files import (
    list_directory,
    read_classes,
    require_images,
)
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.read import add_workers_argument
from tpudet.trainkit.command_line import positive_integer, run_command

_FOLDERS = {"train": "train", "val": "validation", "test": "test"}  # under $DATA

_EPILOG = """examples:
  scripts/gen_tfrecords.py --classes_file $STORAGE/prepared/classes_part_0.csv \\
      --min_samples_per_class 338 --display_only
  scripts/gen_tfrecords.py --classes_file $STORAGE/prepared/classes_part_0.csv \\
      --image_info_file data/boxes.csv --image_dir data/train --output $STORAGE/converted/part_0

Images without a box of these classes are not written. Copies go by each image's least frequent
class, the rarest class first, until each class is in --min_samples_per_class images exactly; a
class that cannot be is named. A run that was killed goes on where it was.
exit status: 0 done, 2 wrong arguments or inputs (nothing half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gen_tfrecords.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--image_info_file",
        metavar="CSV",
        help="boxes, as Open Images writes them (default: in $STORAGE/prepared, "
        "train_no_groups.csv, val_PART.csv or test_PART.csv)",
    )
    parser.add_argument(
        "--classes_file", required=True, metavar="CSV", help="`MID,name` a line: the part's classes"
    )
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument(
        "--image_dir",
        metavar="DIR",
        help="folder of the pictures (default: train, validation or test in $DATA)",
    )
    parser.add_argument(
        "--image_dir2", metavar="DIR", help="looked in for what the first folder does not have"
    )
    parser.add_argument("--image_list", metavar="FILE", help="take exactly these images")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="converted/PART; its last name is the part (default: in $STORAGE/converted, the name "
        "of the class list after `classes_`)",
    )
    parser.add_argument(
        "--num_shards", type=positive_integer, default=10, metavar="N", help="files (default 10)"
    )
    parser.add_argument(
        "--min_samples_per_class",
        type=_count,
        default=0,
        metavar="N",
        help="repeat images until each class is in so many (default 0: none is repeated)",
    )
    parser.add_argument(
        "--display_only",
        action="store_true",
        help="print the imbalance before and after, write nothing and look for no image file",
    )
    parser.add_argument(
        "--skip_missing",
        action="store_true",
        help="leave out images whose files are missing, and name them in the manifest",
    )
    add_writing_arguments(parser, image_check="headers")
    add_workers_argument(parser)
    return run_command(parser, argv, _run)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0")
    return int(text)


def _run(arguments: argparse.Namespace) -> int:
    first = arguments.image_dir or data_path(_FOLDERS[arguments.split])
    directories = (first, arguments.image_dir2) if arguments.image_dir2 else (first,)
    part = os.path.splitext(os.path.basename(arguments.classes_file))[0].removeprefix("classes_")
    boxes = f"{arguments.split}_{'no_groups' if arguments.split == 'train' else part}.csv"
    plan = tfrecords_plan(
        boxes_csv=arguments.image_info_file or storage_path("prepared", boxes),
        classes_csv=arguments.classes_file,
        image_directories=() if arguments.display_only else directories,
        output=arguments.output or storage_path("converted", part),
        split=arguments.split,
        num_shards=arguments.num_shards,
        min_images_per_class=arguments.min_samples_per_class,
        max_copies=arguments.max_copies,
        seed=arguments.seed,
        image_check=arguments.image_check,
        skip_missing=arguments.skip_missing,
        image_list=arguments.image_list,
    )
    print(
        f"{plan.options['boxes_taken']} of {plan.options['boxes_read']} boxes are of the classes, "
        f"in {len(plan.annotations.images)} of {plan.options['images_read']} images"
    )
    if arguments.display_only:
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))
        print(f"Nothing was written; {plan.num_shards} file(s) {plan.prefix}-* would be.")
        return 0
    write_sets(
        [plan],
        workers=arguments.workers,
        cluster=arguments.cluster,
        overwrite=arguments.overwrite,
    )
    return 0


def tfrecords_plan(
    *,
    boxes_csv: str,
    classes_csv: str,
    image_directories: Sequence[str],
    output: str,
    split: str,
    num_shards: int,
    min_images_per_class: int,
    max_copies: int | None,
    seed: int,
    image_check: str,
    skip_missing: bool,
    image_list: str | None = None,
) -> Plan:
    """Plans one set: the images that hold a box of the classes, as often as the balance wants.

    Args:
        boxes_csv: the boxes; those of other classes are passed over.
        classes_csv: the classes of the part.
        image_directories: the first that has an image's file is read; none: for display only.
        output: converted/<part>.
        split: train, val or test.
        num_shards: files.
        min_images_per_class: 0 writes each image once; over 0 suits train only.
        max_copies: the most that an image is written; None: no limit.
        seed: of copies and order.
        image_check: full or headers.
        skip_missing: leave out images whose files are missing, each with a finding.
        image_list: a file of image ids; exactly those are taken, with boxes or without.

    Raises:
        PreparationError: an unusable file, no box of the classes, or image files are missing.
    """
    check_balance(min_images_per_class, max_copies, (split,))
    for directory in image_directories:
        list_directory(directory, "--image_dir")
    annotations, source = _read(boxes_csv, classes_csv, image_list)
    annotations, rows = _with_files(annotations, image_directories, skip_missing)
    balance = balance_images(
        annotations,
        rows,
        min_images_per_class=min_images_per_class,
        max_copies=max_copies,
        seed=seed,
    )
    wishes = {"balance": min_images_per_class, "max_copies": max_copies}
    return plan_shards(
        annotations,
        image_directories=image_directories,
        output=output,
        split=split,
        num_shards=num_shards,
        seed=seed,
        check_pixels=image_check == "full",
        rows=rows,
        balance=balance,
        options={**source, "images": list(image_directories), "skip_missing": skip_missing}
        | wishes,
    )


def _read(
    boxes_csv: str, classes_csv: str, image_list: str | None
) -> tuple[Annotations, dict[str, Any]]:
    """The boxes of the classes and their images, and what was read, for the manifest."""
    classes = read_classes(classes_csv, "--classes_file")
    everything = read_open_images(
        boxes_csv, images="", image_list=image_list, what="--image_info_file"
    )
    chosen = select_classes(everything, classes, keep_all_images=image_list is not None)
    return chosen, {
        "format": "open_images",
        "annotations": boxes_csv,
        "image_list": image_list,
        "classes": classes_csv,
        "images_read": len(everything.images),
        "boxes_read": len(everything.boxes),
        "boxes_taken": len(chosen.boxes),
    }


def _with_files(
    annotations: Annotations, image_directories: Sequence[str], skip_missing: bool
) -> tuple[Annotations, np.ndarray]:
    """The annotations, and the rows of the images that can be read."""
    if image_directories and skip_missing:
        return leave_out_missing(annotations, image_directories)
    if image_directories:
        advice = "Fetch them, or pass --skip_missing to leave these images out."
        require_images(image_directories, annotations.images["file"].tolist(), advice)
    return annotations, np.arange(len(annotations.images))
