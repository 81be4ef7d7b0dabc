"""Removes boxes of groups, depictions and interiors from a box CSV."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import TRAIN_BOXES
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """A box whose flag is -1 or blank (unknown) is kept. Columns and texts are unchanged.

example:
  tpudet filter_dataset $STORAGE/prepared/train_no_groups_no_inside.csv \\
      $DATA/challenge-2019-train-detection-bbox.csv --remove_inside
exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written),
130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet filter_dataset", __doc__, epilog=_EPILOG)
    add_positionals(
        parser,
        ("output", "OUTPUT", storage_path("prepared", "train_no_groups.csv"), "CSV to write"),
        ("input", "INPUT", data_path(TRAIN_BOXES), "box CSV"),
    )
    for name, default, what in (
        ("groups", True, "boxes around several objects, IsGroupOf"),
        ("depicted", False, "drawings, toys and other depictions, IsDepiction"),
        ("inside", False, "views of the inside of an object, IsInside"),
    ):
        parser.add_argument(
            f"--remove_{name}",
            action=argparse.BooleanOptionalAction,
            default=default,
            help=f"{what} (default: {'yes' if default else 'no'})",
        )
        for text in ("True", "False"):  # as the predecessor's users type it
            parser.add_argument(
                f"--remove_{name}={text}",
                dest=f"remove_{name}",
                action="store_const",
                const=text == "True",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.filter_boxes import filter_step
    from tpudet.trainkit.jobs.steps import run_step

    step = filter_step(
        arguments.output,
        arguments.input,
        remove_groups=arguments.remove_groups,
        remove_depicted=arguments.remove_depicted,
        remove_inside=arguments.remove_inside,
    )
    run_step(step, overwrite=arguments.overwrite)
