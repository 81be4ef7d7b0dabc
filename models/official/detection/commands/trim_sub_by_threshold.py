"""The command `tpudet trim_sub_by_threshold`: leaves out predictions below a score."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import rewriting_parser
from tpudet.trainkit.command_line import run_command, share

_EPILOG = """\
example: tpudet trim_sub_by_threshold trimmed.csv merged.csv 0.03

Predictions of at least MIN_CONF stay. Every image stays, with or without predictions.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = rewriting_parser(
        "tpudet trim_sub_by_threshold",
        "Leave out predictions with a score below MIN_CONF.",
        _EPILOG,
    )
    parser.add_argument("min_conf", metavar="MIN_CONF", type=share, help="lowest score, 0 to 1")
    parser.add_argument(
        "--keep_first",
        action="store_true",
        help="keep the first prediction of an image whatever its score",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.trim import trim_by_threshold

    return trim_by_threshold(**vars(arguments))
