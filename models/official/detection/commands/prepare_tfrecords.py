"""Writes the TFRecords of a preset: a training and a validation set per part."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_part_arguments,
    add_paths,
    build_workspace,
    build_write_options,
)
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.locations import data_path

_EPILOG = """Writes $STORAGE/converted/PRESET_PART with the splits train, balanced as the preset
says, and val. The same command resumes an interrupted run; what is up to date is skipped.

example:
  tpudet prepare_tfrecords v3 --parts human_parts part_0 --max_copies 20
exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet prepare_tfrecords", __doc__, epilog=_EPILOG)
    parser.add_argument(
        "preset",
        metavar="PRESET",
        help="v1 to v5, segmentation, segmentation_balanced, or another of --presets",
    )
    parser.add_argument(
        "--predictions", metavar="FILE", help="submission CSV, for presets with pseudo-labels"
    )
    add_paths(
        parser,
        ("validation_images", data_path("validation"), "folder of the validation images"),
        ("test_images", data_path("test"), "folder of the test images"),
    )
    add_part_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.prepare_tfrecords import prepare_tfrecords

    prepare_tfrecords(
        arguments.preset,
        presets=arguments.presets,
        parts=arguments.parts,
        workspace=build_workspace(arguments),
        validation_images=arguments.validation_images,
        test_images=arguments.test_images,
        predictions=arguments.predictions,
        options=build_write_options(arguments),
        dry_run=arguments.dry_run,
    )
