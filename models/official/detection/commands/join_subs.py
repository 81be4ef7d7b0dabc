"""The command `tpudet join_subs`: joins submissions of parts of the classes."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import (
    EXIT_CODES,
    JOIN_MIN_CONF,
    add_rewriting_arguments,
)
from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = f"""\
example: tpudet join_subs joined.csv human_parts.csv part_0.csv part_1.csv part_2.csv

Images are joined by id and written in the order of their ids; an image that some files lack gets
the predictions of the others, and the summary counts the images that a file lacks. The predictions
of an image are sorted in descending order of score, equal scores in the order of the files. Nothing
is merged: that is tpudet merge_subs. Parts to which ancestors were added may have the same box of
an ancestor: tpudet add_parents, run again on RESULT, leaves it once.

{EXIT_CODES}"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet join_subs", "Join submissions of parts of the classes into one.", epilog=_EPILOG
    )
    parser.add_argument("target", metavar="RESULT", help="the submission to write")
    parser.add_argument("sources", metavar="FILE", nargs="+", help="submissions to join")
    parser.add_argument(
        "--min_conf",
        type=float,
        default=JOIN_MIN_CONF,
        metavar="X",
        help="predictions with a score above it stay (default: %(default)s)",
    )
    add_rewriting_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.join import join_submissions

    return join_submissions(**vars(arguments))
