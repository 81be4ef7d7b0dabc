"""Adds confident predictions on the test images to a box CSV.

The predecessor's name for add_pseudo_labels, which has more options.
"""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_confidence_arguments,
    add_overwrite_argument,
)
from tpudet.trainkit.command_line import new_parser, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet add_data_from_testset", __doc__)
    parser.add_argument("output", metavar="OUTPUT", help="box CSV to write")
    parser.add_argument("boxes", metavar="DESC", help="box CSV to add to")
    parser.add_argument(
        "predictions", metavar="PREDICT", help="submission, ImageId,PredictionString"
    )
    add_confidence_arguments(parser)
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
    )
    run_step(step, overwrite=arguments.overwrite)
