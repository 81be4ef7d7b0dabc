"""The command `trim_sub_by_threshold.py`: predictions below a score leave a submission."""

import argparse
import sys
from collections.abc import Sequence

from tpudet.detection.submission.files import Block, SubmissionError, open_submission
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.rewrite import describe, rewrite_submission, rewriting_parser
from tpudet.detection.submission.writer import check_target
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: trim_sub_by_threshold.py trimmed.csv merged.csv 0.03

Predictions of at least MIN_CONF stay. Every image stays, if need be without predictions.
"""


def at_least(rows: ScannedRows, min_conf: float, *, keep_first: bool = False) -> ScannedRows:
    """Returns the predictions with a score of at least `min_conf`.

    Args:
        rows: predictions.
        min_conf: the least score.
        keep_first: whether the first prediction of an image stays whatever its score.
    """
    chosen = rows.scores >= min_conf
    if keep_first:
        chosen |= rows.first_of_image()
    return rows.take(chosen)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = rewriting_parser(
        "trim_sub_by_threshold.py", "Leave out predictions with a score below MIN_CONF.", _EPILOG
    )
    parser.add_argument("min_conf", metavar="MIN_CONF", type=float, help="the least score, 0 to 1")
    parser.add_argument(
        "--keep_first",
        action="store_true",
        help="keep the first prediction of an image whatever its score",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, source, min_conf = arguments.result, arguments.source, arguments.min_conf
    if not 0 <= min_conf <= 1:
        raise SubmissionError(f"MIN_CONF {min_conf} must lie in 0..1, as scores do")
    check_target(target, [source], force=arguments.force, threads=arguments.threads)

    def change(_: Block, rows: ScannedRows) -> ScannedRows:
        return at_least(rows, min_conf, keep_first=arguments.keep_first)

    with open_submission(source) as opened:
        totals = rewrite_submission(
            target, opened, change, threads=arguments.threads, skip_bad=arguments.skip_bad
        )
    return describe(target, totals)


if __name__ == "__main__":
    sys.exit(main())
