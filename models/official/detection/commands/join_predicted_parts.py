"""The command `tpudet join_predicted_parts`: joins the predictions of shards into one file."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """\
examples:
  tpudet join_predicted_parts p.parquet p_part_*_of_8.parquet
  tpudet join_predicted_parts p.parquet first.parquet second.parquet --ids sample_submission.csv

The files must be of one model, one precision and the same views, and no image may be in two of
them. They are complete with all shards of one list of images, or with all images of --ids.

exit codes: 0 done, 2 wrong arguments or files that do not belong together (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet join_predicted_parts",
        "Join the predictions of shards (tpudet predict --shard I/N) into one file.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "target", metavar="RESULT", help="file to write: .pkl a pickle, else Parquet"
    )
    parser.add_argument("sources", metavar="FILE", nargs="+", help="predictions of the shards")
    parser.add_argument("--ids", metavar="FILE", help="all image ids, one per line (or a CSV)")
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT if it exists")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.inference.join_shards import join_predicted_parts

    return join_predicted_parts(**vars(arguments))
