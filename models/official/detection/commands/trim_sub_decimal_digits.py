"""The command `tpudet trim_sub_decimal_digits`: rounds coordinates to fewer decimals."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import rewriting_parser
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: tpudet trim_sub_decimal_digits shorter.csv merged.csv --digits 3

Coordinates are rounded to the nearest, not cut off; scores keep 5 decimals unless --score_digits
is given. Every prediction stays, also one whose sides become equal.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = rewriting_parser(
        "tpudet trim_sub_decimal_digits", "Round the coordinates to fewer decimals.", _EPILOG
    )
    for name, default, meaning in (("digits", 4, "coordinates"), ("score_digits", 5, "scores")):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"decimals of the {meaning}, 0 to 9 (default: %(default)s)",
        )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.trim import trim_decimals

    return trim_decimals(**vars(arguments))
