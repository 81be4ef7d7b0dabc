"""Adds the confident predictions of a submission to a box CSV."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_confidence_arguments,
    add_overwrite_argument,
    add_positionals,
)
from tpudet.trainkit.command_line import new_parser, run_command, share
from tpudet.trainkit.files.locations import storage_path

_EPILOG = """example:
  tpudet add_pseudo_labels train_more.csv train.csv submission.csv --min_conf 0.95

exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet add_pseudo_labels", __doc__, epilog=_EPILOG)
    best = storage_path("prepared", "best_submission.csv")
    add_positionals(
        parser,
        ("output", "OUTPUT", storage_path("prepared", "train_pseudo_labels.csv"), "CSV to write"),
        ("boxes", "BOXES", storage_path("prepared", "train_no_groups.csv"), "box CSV to add to"),
        ("predictions", "PREDICTIONS", best, "submission, ImageId,PredictionString"),
    )
    add_confidence_arguments(parser)
    parser.add_argument(
        "--class_thresholds",
        metavar="FILE",
        help="one `class,threshold` per line; overrides --min_conf",
    )
    parser.add_argument(
        "--max_iou",
        type=share,
        default=0.5,
        metavar="X",
        help="a prediction with a higher IoU with a box of its class is a duplicate (default 0.5)",
    )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.pseudo_labels import pseudo_labels_step
    from tpudet.trainkit.jobs.steps import run_step

    step = pseudo_labels_step(
        arguments.output,
        arguments.boxes,
        arguments.predictions,
        min_conf=arguments.min_conf,
        classes=arguments.classes,
        class_thresholds=arguments.class_thresholds,
        max_iou=arguments.max_iou,
    )
    run_step(step, overwrite=arguments.overwrite)
