"""The command `tpudet gen_sub`: writes the submission of a predictions file."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_generating_arguments
from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """\
examples: tpudet gen_sub predictions/retinanet-part_0-640.parquet
          tpudet gen_sub p.parquet --out sub.csv --hierarchy challenge-2019-label500-hierarchy.json

A submission names every image, so files that tpudet predict --shard wrote are joined before, by
tpudet join_predicted_parts.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet gen_sub",
        "Write the submission CSV of a predictions file: boxes, or masks with --masks.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", metavar="PREDICTIONS", help="written by tpudet predict")
    parser.add_argument(
        "--out",
        dest="target",
        metavar="FILE",
        help="default: the name of PREDICTIONS, ending in .csv",
    )
    add_generating_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.inference.submissions import generate_submission

    return generate_submission(**vars(arguments))
