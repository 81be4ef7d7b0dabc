"""The command `tpudet trim_sub_by_num_of_predicts`: the N best predictions."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import rewriting_parser
from tpudet.trainkit.command_line import natural_number, run_command
from tpudet.trainkit.errors import UserError

_MAX_NUM = 150_000_000  # about the limit of Kaggle's scorer
_EPILOG = """\
example: tpudet trim_sub_by_num_of_predicts trimmed.csv merged.csv 150000000

One cut goes through all images: the predictions with the best scores stay, exactly N of them.
Scores count as they are written, with 5 decimals; of equal ones those earlier in FILE stay. A file
of at most N predictions keeps them all. With --keep_first the first prediction of each image ranks
before all others, and is one of the N.

FILE is read twice. Memory holds how often each of the 100,001 scores occurs in each of 64
stretches of the file (50 MB), whatever N is.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = rewriting_parser(
        "tpudet trim_sub_by_num_of_predicts", "Keep the N best predictions of all images.", _EPILOG
    )
    parser.add_argument("number", metavar="N", type=natural_number, nargs="?", help="how many stay")
    parser.add_argument(
        "--max_num", type=natural_number, metavar="N", help=f"the same as N (default: {_MAX_NUM})"
    )
    parser.add_argument(
        "--keep_first", action="store_true", help="let each image keep its first prediction"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.trim import trim_to_number

    given = {value for value in (arguments.number, arguments.max_num) if value is not None}
    if len(given) > 1:
        raise UserError(
            f"N is {arguments.number} and --max_num {arguments.max_num}; give one of them"
        )
    return trim_to_number(
        arguments.target,
        arguments.source,
        max_num=given.pop() if given else _MAX_NUM,
        keep_first=arguments.keep_first,
        force=arguments.force,
        threads=arguments.threads,
        skip_bad=arguments.skip_bad,
    )
