"""Splits classes into parts of similar frequency; human parts form a part of their own."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_boundaries_argument,
    add_overwrite_argument,
    add_positionals,
)
from tpudet.detection.preparation.open_images.challenge import (
    HIERARCHY,
    HUMAN_IMAGES,
    HUMAN_PARTS,
    TRAIN_BOXES,
    human_parts_path,
)
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """Writes classes_stats.csv (classes,names,count; rarest first), classes_part_0.csv and so
on and, with human parts, classes_human_parts.csv and train_human_parts.csv with the rows of BBOXES
of these classes. Labels may be the identifiers of the classes or their names.

example:
  tpudet split_classes $DATA/challenge-2019-train-detection-bbox.csv \\
      $STORAGE/prepared/classes_leaf.csv --output_dir $STORAGE/prepared
exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written),
130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet split_classes", __doc__, epilog=_EPILOG)
    leaves = storage_path("prepared", "classes_leaf.csv")
    add_positionals(
        parser,
        ("boxes", "BBOXES", data_path(TRAIN_BOXES), "box CSV to count in"),
        ("classes", "CLASSES", leaves, "class list to split"),
    )
    parser.add_argument(
        "--output_dir",
        default=storage_path("prepared"),
        metavar="DIR",
        help="folder to write to (default: %(default)s)",
    )
    add_boundaries_argument(parser)
    parser.add_argument(
        "--human_parts",
        metavar="FILE",
        help="labels that form a part of their own; '' for none (default: "
        f"{data_path(HUMAN_PARTS)}, if there, else the challenge's 13)",
    )
    parser.add_argument(
        "--human_images",
        metavar="FILE",
        help="images that train_human_parts.csv may use; '' for all of BBOXES (default: "
        f"{HUMAN_IMAGES} in $DATA, if there)",
    )
    parser.add_argument(
        "--hierarchy",
        metavar="FILE",
        help="JSON of labels that --human_parts may have besides those of CLASSES and BBOXES; '' "
        f"for none (default: {HIERARCHY} in $DATA, if there)",
    )
    for output in ("classes_stats", "human_parts", "six_levels"):
        parser.add_argument(
            f"--gen_{output}",
            action="store_true",
            help="of the predecessor: accepted, and all files are always written",
        )
    add_overwrite_argument(parser, "existing files")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.class_splits import split_step
    from tpudet.trainkit.jobs.steps import run_step

    human_parts = arguments.human_parts
    if human_parts is None:
        human_parts = human_parts_path()
    step = split_step(
        arguments.output_dir,
        arguments.boxes,
        arguments.classes,
        boundaries=arguments.boundaries,
        human_parts=human_parts or None,
        human_images=_optional(arguments.human_images, HUMAN_IMAGES),
        hierarchy=_optional(arguments.hierarchy, HIERARCHY),
    )
    run_step(step, overwrite=arguments.overwrite)


def _optional(path: str | None, name: str) -> str | None:
    if path is None and storage.exists(data_path(name)):
        return data_path(name)
    return path or None
