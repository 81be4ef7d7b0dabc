"""The command `tpudet compare_submissions`: the change between two submissions, by class."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_truth_arguments, truth_options
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, seed

_EPILOG = """\
example: tpudet compare_submissions before.csv after.csv \\
             challenge-2019-validation-detection-bbox.csv \\
             --hierarchy challenge-2019-label500-hierarchy.json --output changes.csv

The intervals are of the change B - A, by bootstrap: images are drawn with replacement, the same
for A and B, and both are scored on them. A change whose interval excludes zero is marked *.
GROUNDTRUTH and the rules are those of tpudet evaluate_submission.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet compare_submissions",
        "Compare two submissions class by class, with bootstrap intervals.",
        epilog=_EPILOG,
    )
    parser.add_argument("first", metavar="A", help="the submission to start from")
    parser.add_argument("second", metavar="B", help="the submission to compare with it")
    add_truth_arguments(parser)
    parser.add_argument("--output", metavar="FILE", help="a CSV with a row per class")
    for name, kind, default, metavar, text in (
        ("resamples", positive_integer, 1000, "N", "bootstrap samples"),
        ("seed", seed, 0, "N", "of the samples"),
        ("confidence", float, 0.95, "X", "of the intervals, between 0 and 1"),
    ):
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=default,
            metavar=metavar,
            help=f"{text} (default: %(default)s)",
        )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.evaluation.compare import compare_submissions
    from tpudet.detection.evaluation.open_images.evaluate import ChallengeOptions

    return compare_submissions(
        arguments.first,
        arguments.second,
        ChallengeOptions(**truth_options(arguments)),
        output=arguments.output,
        resamples=arguments.resamples,
        seed=arguments.seed,
        confidence=arguments.confidence,
        force=arguments.force,
    )
