"""Makes class groups, box CSVs and validation sets from the challenge's files."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_boundaries_argument,
    add_overwrite_argument,
    add_paths,
)
from tpudet.detection.preparation.open_images.challenge import (
    BLACKLIST,
    CLASSES,
    HIERARCHY,
    HUMAN_IMAGES,
    HUMAN_PARTS,
    TRAIN_BOXES,
    VALIDATION_BOXES,
    human_parts_path,
)
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """Files made in --output_dir:
  classes_leaf.csv, classes_stats.csv, classes_part_0.csv .., classes_human_parts.csv
  train_no_groups.csv and two more filtered CSVs; the same for the boxes of human parts
  val_PART.csv and val_PART.json (COCO) of human_parts and every part

The same command resumes an interrupted run; what is up to date is skipped.

example:
  DATA=/mnt/open_images STORAGE=/mnt/output tpudet prepare_datasets
exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet prepare_datasets", __doc__, epilog=_EPILOG)
    add_paths(
        parser,
        ("train_boxes", data_path(TRAIN_BOXES), "box CSV"),
        ("validation_boxes", data_path(VALIDATION_BOXES), "box CSV"),
        ("classes", data_path(CLASSES), "class list, one `MID,name` per line"),
        ("hierarchy", data_path(HIERARCHY), "JSON"),
        ("image_dir", data_path("validation"), "folder of the validation images"),
        ("output_dir", storage_path("prepared"), "folder to write to"),
    )
    for name, file, what in (
        ("human_images", HUMAN_IMAGES, "ids of the training images of human parts"),
        ("blacklist", BLACKLIST, "validation images not to pick"),
    ):
        parser.add_argument(
            f"--{name}", metavar="FILE", help=f"{what} (default: {data_path(file)}, if there)"
        )
    parser.add_argument(
        "--human_parts",
        metavar="FILE",
        help=f"MIDs of the group human_parts (default: {data_path(HUMAN_PARTS)}, if there, else "
        "the challenge's 13)",
    )
    parser.add_argument(
        "--viz_directory", metavar="DIR", help="also draw the picked images, in DIR/PART"
    )
    add_boundaries_argument(parser)
    parser.add_argument(
        "--num_samples",
        type=positive_integer,
        default=5,
        metavar="N",
        help="validation images per class (default 5)",
    )
    parser.add_argument("--dry_run", action="store_true", help="list the steps, write nothing")
    add_overwrite_argument(parser, "files that were not made by this command")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.prepare_datasets import (
        ChallengeFiles,
        prepare_datasets,
    )

    files = ChallengeFiles(
        train_boxes=arguments.train_boxes,
        validation_boxes=arguments.validation_boxes,
        classes=arguments.classes,
        hierarchy=arguments.hierarchy,
        human_parts=arguments.human_parts or human_parts_path(),
        image_dir=arguments.image_dir,
        human_images=arguments.human_images,
        blacklist=arguments.blacklist,
    )
    prepare_datasets(
        files,
        arguments.output_dir,
        boundaries=arguments.boundaries,
        num_samples=arguments.num_samples,
        viz_directory=arguments.viz_directory,
        dry_run=arguments.dry_run,
        overwrite=arguments.overwrite,
    )
