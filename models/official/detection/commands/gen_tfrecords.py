"""Writes balanced TFRecords of one part from an Open Images box CSV."""

import argparse
import os
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    SPLITS,
    add_mask_file_arguments,
    add_writing_arguments,
)
from tpudet.trainkit.command_line import (
    add_workers_argument,
    natural_number,
    new_parser,
    positive_integer,
    run_command,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.locations import data_path, storage_path

_FOLDERS = {"train": "train", "val": "validation", "test": "test"}  # under $DATA

_EPILOG = """examples:
  tpudet gen_tfrecords --classes_file $STORAGE/prepared/classes_part_0.csv \\
      --min_samples_per_class 338 --display_only
  tpudet gen_tfrecords --classes_file $STORAGE/prepared/classes_part_0.csv \\
      --image_info_file data/boxes.csv --image_dir data/train --output $STORAGE/converted/part_0

Images without a box of these classes are not written. Images are copied by their least frequent
class, the rarest class first, until each class is in exactly --min_samples_per_class images;
classes that cannot reach it are listed. The same command resumes an interrupted run.
exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet gen_tfrecords", __doc__, epilog=_EPILOG)
    parser.add_argument(
        "--image_info_file",
        metavar="CSV",
        help="Open Images box CSV (default: in $STORAGE/prepared, train_no_groups.csv, "
        "val_PART.csv or test_PART.csv)",
    )
    parser.add_argument(
        "--classes_file",
        required=True,
        metavar="CSV",
        help="the part's classes, one `MID,name` per line",
    )
    parser.add_argument("--split", choices=SPLITS, default="train", help="[%(default)s]")
    parser.add_argument(
        "--image_dir",
        metavar="DIR",
        help="folder of the images (default: train, validation or test in $DATA)",
    )
    parser.add_argument(
        "--image_dir2", metavar="DIR", help="searched for images that the first folder lacks"
    )
    parser.add_argument("--image_list", metavar="FILE", help="take exactly these images")
    parser.add_argument(
        "--include_masks",
        action="store_true",
        help="write the masks of --mask_csv and --mask_dir too",
    )
    add_mask_file_arguments(parser)
    _add_output_arguments(parser)
    parser.add_argument(
        "--num_shards", type=positive_integer, default=10, metavar="N", help="files (default 10)"
    )
    parser.add_argument(
        "--min_samples_per_class",
        type=natural_number,
        default=0,
        metavar="N",
        help="repeat images until every class is in N of them (default 0: none is repeated)",
    )
    parser.add_argument(
        "--display_only",
        action="store_true",
        help="print the class counts before and after; write nothing and check no image files",
    )
    parser.add_argument(
        "--skip_missing",
        action="store_true",
        help="leave out images whose files are missing, and list them in the manifest",
    )
    add_writing_arguments(parser, image_check="headers")
    add_workers_argument(parser)
    return run_command(parser, argv, _run)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--output",
        metavar="DIR",
        help="converted/PART; its last name is the part (default: in $STORAGE/converted, the name "
        "of the class list after `classes_`)",
    )
    output.add_argument(
        "--output_prefix",
        metavar="DIR/SPLIT_PART",
        help="of the predecessor: the same as --output DIR, whose last name is PART",
    )


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.plan_part import PartSet, plan_part, write_part
    from tpudet.detection.preparation.sources.input_files import list_directory
    from tpudet.detection.preparation.sources.mask_files import choose_mask_files

    first = arguments.image_dir or data_path(_FOLDERS[arguments.split])
    folders = {} if arguments.display_only else {"--image_dir": first}
    if folders and arguments.image_dir2:
        folders["--image_dir2"] = arguments.image_dir2
    for argument, folder in folders.items():
        list_directory(folder, argument)
    part = os.path.splitext(os.path.basename(arguments.classes_file))[0].removeprefix("classes_")
    boxes = f"{arguments.split}_{'no_groups' if arguments.split == 'train' else part}.csv"
    part_set = PartSet(
        output=_output_folder(arguments) or storage_path("converted", part),
        split=arguments.split,
        boxes=arguments.image_info_file or storage_path("prepared", boxes),
        classes=arguments.classes_file,
        image_directories=tuple(folders.values()),
        num_shards=arguments.num_shards,
        min_images_per_class=arguments.min_samples_per_class,
        max_copies=arguments.max_copies,
        masks=choose_mask_files(arguments.include_masks, arguments.mask_csv, arguments.mask_dir),
    )
    plan = plan_part(
        part_set,
        seed=arguments.seed,
        check_pixels=arguments.image_check == "full",
        skip_missing=arguments.skip_missing,
        allow_empty=arguments.allow_empty,
        image_list=arguments.image_list,
    )
    write_part(
        plan,
        display_only=arguments.display_only,
        workers=arguments.workers,
        cluster=arguments.cluster,
        overwrite=arguments.overwrite,
        allow_empty=arguments.allow_empty,
    )


def _output_folder(arguments: argparse.Namespace) -> str | None:
    """--output, or the folder of --output_prefix, which must name the files that are written."""
    if arguments.output_prefix is None:
        return arguments.output
    folder, name = os.path.split(arguments.output_prefix)
    expected = f"{arguments.split}_{os.path.basename(folder)}"
    if name != expected:
        raise UserError(
            f"--output_prefix {arguments.output_prefix}: files in {folder or 'this folder'} would "
            f"be called {expected}-00000-of-{arguments.num_shards:05d}.tfrecord: give "
            f"{os.path.join(folder or 'PART', expected if folder else arguments.split + '_PART')}, "
            "or --output with the folder alone"
        )
    return folder
