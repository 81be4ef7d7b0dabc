"""Command: from the challenge's box CSVs to class groups, box CSVs and validation sets."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from tpudet.detection.preparation.open_images.class_splits import (
    DEFAULT_BOUNDARIES,
    boundaries_argument,
    split_step,
)
from tpudet.detection.preparation.open_images.coco_json import coco_json_step
from tpudet.detection.preparation.open_images.default_paths import (
    BLACKLIST,
    CLASSES,
    HIERARCHY,
    HUMAN_IMAGES,
    HUMAN_PARTS,
    TRAIN_BOXES,
    VALIDATION_BOXES,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.open_images.filter_boxes import filter_step
from tpudet.detection.preparation.open_images.leaf_classes import leaf_classes_step
from tpudet.detection.preparation.open_images.validation import validation_step
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.command_line import positive_integer, run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.jobs.steps import Step, list_steps, run_steps

# What a filter removes; its name ends the name of the CSV.
_FILTERS: dict[str, dict[str, bool]] = {
    "no_groups": {},
    "no_groups_no_inside": {"remove_inside": True},
    "no_groups_no_depictions_no_inside": {"remove_depicted": True, "remove_inside": True},
}

_EPILOG = """Made, in --output_dir:
  classes_leaf.csv, classes_stats.csv, classes_part_0.csv .., classes_human_parts.csv
  train_no_groups.csv and two more filtered CSVs; the same of the human parts' boxes
  val_PART.csv and val_PART.json (COCO) of human_parts and every part

What is up to date is skipped, so a run that was killed goes on.

example:
  DATA=/mnt/open_images STORAGE=/mnt/output scripts/prepare_datasets.sh
exit status: 0 done, 2 wrong arguments or inputs (nothing half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="prepare_datasets.sh",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_path_arguments(parser)
    parser.add_argument(
        "--viz_directory", metavar="DIR", help="also draw the chosen pictures there, DIR/PART"
    )
    parser.add_argument(
        "--boundaries",
        type=boundaries_argument,
        default=DEFAULT_BOUNDARIES,
        metavar="0,N,...",
        help="ranks, by rising number of images, where groups of classes begin and the last ends "
        f"(default: {','.join(map(str, DEFAULT_BOUNDARIES))})",
    )
    parser.add_argument(
        "--num_samples", type=positive_integer, default=5, metavar="N", help="images a class (5)"
    )
    parser.add_argument("--dry_run", action="store_true", help="list the steps, write nothing")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files that no step has made"
    )
    return run_command(parser, argv, _run)


def _add_path_arguments(parser: argparse.ArgumentParser) -> None:
    for name, default, what in (
        ("train_boxes", data_path(TRAIN_BOXES), "box CSV"),
        ("validation_boxes", data_path(VALIDATION_BOXES), "box CSV"),
        ("classes", data_path(CLASSES), "`MID,name` a line"),
        ("hierarchy", data_path(HIERARCHY), "JSON"),
        ("human_parts", data_path(HUMAN_PARTS), "MIDs of the group human_parts"),
        ("image_dir", data_path("validation"), "folder of the validation pictures"),
        ("output_dir", storage_path("prepared"), "folder to write to"),
    ):
        parser.add_argument(
            f"--{name}", default=default, metavar="PATH", help=f"{what} (default: %(default)s)"
        )
    for name, default, what in (
        ("human_images", HUMAN_IMAGES, "ids of the training images of human parts"),
        ("blacklist", BLACKLIST, "validation images not to choose"),
    ):
        parser.add_argument(
            f"--{name}",
            metavar="FILE",
            help=f"{what} (default: {data_path(default)}, where it is)",
        )


def _run(arguments: argparse.Namespace) -> int:
    human_images = _optional(
        arguments.human_images, HUMAN_IMAGES, "human_parts takes all images with a box of them"
    )
    blacklist = _optional(arguments.blacklist, BLACKLIST, "any validation image may be chosen")
    _require_inputs(arguments)
    steps = _steps(arguments, human_images=human_images, blacklist=blacklist)
    if arguments.dry_run:
        print(f"Dry run: {list_steps(steps)} of {len(steps)} steps would be run.")
        return 0
    made = run_steps(steps, overwrite=arguments.overwrite)
    print(f"{made} of {len(steps)} steps run, the others were up to date: {arguments.output_dir}")
    return 0


def _require_inputs(arguments: argparse.Namespace) -> None:
    names = ("train_boxes", "validation_boxes", "classes", "hierarchy", "human_parts", "image_dir")
    paths = {name: getattr(arguments, name) for name in (*names, "human_images", "blacklist")}
    missing = [
        f"--{name} {path}"
        for name, path in paths.items()
        if path is not None and not storage.exists(path)
    ]
    if missing:
        raise PreparationError(
            f"Not there: {', '.join(missing)}. Set DATA to the folder that holds the challenge's "
            "files, or pass their paths."
        )


def _optional(path: str | None, name: str, without: str) -> str | None:
    """The file that was asked for, or that of the default name where it is there."""
    if path is not None:
        return path
    path = data_path(name)
    if storage.exists(path):
        return path
    print(f"There is no {path}: {without}.")
    return None


def _steps(
    arguments: argparse.Namespace, *, human_images: str | None, blacklist: str | None
) -> list[Step]:
    def prepared(name: str) -> str:
        return os.path.join(arguments.output_dir, name)

    human_train = prepared("train_human_parts.csv")
    sources = {"train": arguments.train_boxes, "train_human_parts": human_train}
    leaves = prepared("classes_leaf.csv")
    boundaries = arguments.boundaries
    parts = ["human_parts", *(f"part_{number}" for number in range(len(boundaries) - 1))]
    filters = [
        filter_step(prepared(f"{name}_{suffix}.csv"), source, **options)
        for name, source in sources.items()
        for suffix, options in _FILTERS.items()
    ]
    return [
        filter_step(prepared("val_no_groups.csv"), arguments.validation_boxes),
        *filters[: len(_FILTERS)],
        leaf_classes_step(leaves, arguments.classes, arguments.hierarchy),
        split_step(
            arguments.output_dir,
            arguments.train_boxes,
            leaves,
            boundaries=boundaries,
            human_parts=arguments.human_parts,
            human_images=human_images,
            hierarchy=arguments.hierarchy,
        ),
        *filters[len(_FILTERS) :],
        *(
            step
            for part in parts
            for step in _validation_steps(arguments, part, prepared, blacklist)
        ),
    ]


def _validation_steps(
    arguments: argparse.Namespace, part: str, prepared: Any, blacklist: str | None
) -> list[Step]:
    boxes, classes = prepared(f"val_{part}.csv"), prepared(f"classes_{part}.csv")
    viz = arguments.viz_directory
    return [
        validation_step(
            boxes,
            prepared("val_no_groups.csv"),
            classes,
            num_samples=arguments.num_samples,
            blacklist=blacklist,
            image_directory=arguments.image_dir,
            viz_directory=None if viz is None else os.path.join(viz, part),
        ),
        coco_json_step(
            prepared(f"val_{part}.json"), boxes, classes, image_directory=arguments.image_dir
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
