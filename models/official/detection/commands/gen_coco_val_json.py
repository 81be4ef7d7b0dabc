"""Writes a box CSV as COCO ground truth, with the same images as its TFRecords."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import CLASSES
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """example:
  tpudet gen_coco_val_json val_part_0.json val_part_0.csv classes_part_0.csv \\
      --image_dir $DATA/validation

Images are in the order of the TFRecords that `gen_tfrecords --split val` writes from the same CSV,
classes and --image_check: `id` is the number of the record, from 0, `source_id` that of the record.
exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet gen_coco_val_json", __doc__, epilog=_EPILOG)
    add_positionals(
        parser,
        ("output", "OUTPUT", storage_path("prepared", "val.json"), "JSON to write"),
        ("source", "INPUT", storage_path("prepared", "val.csv"), "box CSV"),
        ("classes", "CLASSES", data_path(CLASSES), "class list, one `MID,name` per line"),
    )
    parser.add_argument(
        "--image_dir",
        default=data_path("validation"),
        metavar="DIR",
        help="folder of the images (default: %(default)s)",
    )
    parser.add_argument(
        "--image_check",
        choices=("full", "headers"),
        default="headers",
        help="as for the TFRecords; full: decode every image (default: %(default)s)",
    )
    parser.add_argument(
        "--keep_all_images",
        action="store_true",
        help="also list images without a box of the classes, as make_tfrecords writes them",
    )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.coco_json import coco_json_step
    from tpudet.trainkit.jobs.steps import run_step

    step = coco_json_step(
        arguments.output,
        arguments.source,
        arguments.classes,
        image_directory=arguments.image_dir,
        check_pixels=arguments.image_check == "full",
        keep_all_images=arguments.keep_all_images,
    )
    run_step(step, overwrite=arguments.overwrite)
