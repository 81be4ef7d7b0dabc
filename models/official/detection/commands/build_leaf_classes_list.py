"""Lists the classes that have no subclasses in the class list."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import CLASSES, HIERARCHY
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """example:
  tpudet build_leaf_classes_list $DATA/challenge-2019-classes-description-500.csv \\
      $DATA/challenge-2019-label500-hierarchy.json $STORAGE/prepared/classes_leaf.csv
exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written),
130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet build_leaf_classes_list", __doc__, epilog=_EPILOG)
    output = storage_path("prepared", "classes_leaf.csv")
    add_positionals(
        parser,
        ("classes", "CLASSES", data_path(CLASSES), "class list, one `MID,name` per line"),
        ("hierarchy", "HIERARCHY", data_path(HIERARCHY), "JSON of LabelName and Subcategory"),
        ("output", "OUTPUT", output, "class list to write"),
    )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.leaf_classes import leaf_classes_step
    from tpudet.trainkit.jobs.steps import run_step

    step = leaf_classes_step(arguments.output, arguments.classes, arguments.hierarchy)
    run_step(step, overwrite=arguments.overwrite)
