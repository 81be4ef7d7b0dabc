"""The command `trim_sub_decimal_digits.py`: coordinates of a submission with fewer decimals."""

import argparse
import sys
from collections.abc import Sequence

from tpudet.detection.submission.files import Block, SubmissionError, open_submission
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.rewrite import describe, rewrite_submission, rewriting_parser
from tpudet.detection.submission.writer import check_target
from tpudet.trainkit.command_line import run_command

MOST_DIGITS = 9
_EPILOG = """\
example: trim_sub_decimal_digits.py shorter.csv merged.csv --digits 3

Coordinates are rounded to the nearest, not cut off; scores keep 5 decimals unless --score_digits
says otherwise. Every prediction stays, also one whose sides become equal.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = rewriting_parser(
        "trim_sub_decimal_digits.py", "Round the coordinates to fewer decimals.", _EPILOG
    )
    for name, default, meaning in (("digits", 4, "coordinates"), ("score_digits", 5, "scores")):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"decimals of the {meaning}, 0 to {MOST_DIGITS} (default: %(default)s)",
        )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, source = arguments.result, arguments.source
    mistakes = [
        f"--{name} {value} must lie in 0..{MOST_DIGITS}"
        for name, value in (
            ("digits", arguments.digits),
            ("score_digits", arguments.score_digits),
        )
        if not 0 <= value <= MOST_DIGITS
    ]
    if mistakes:
        raise SubmissionError("\n".join(mistakes))
    check_target(target, [source], force=arguments.force, threads=arguments.threads)

    def change(_: Block, rows: ScannedRows) -> ScannedRows:
        return rows

    with open_submission(source) as opened:
        totals = rewrite_submission(
            target,
            opened,
            change,
            score_decimals=arguments.score_digits,
            box_decimals=arguments.digits,
            threads=arguments.threads,
            skip_bad=arguments.skip_bad,
        )
    return describe(target, totals)


if __name__ == "__main__":
    sys.exit(main())
