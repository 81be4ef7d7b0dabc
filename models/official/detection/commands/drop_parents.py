"""The command `tpudet drop_parents`: keeps only predictions of leaf labels."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_hierarchy_argument, rewriting_parser
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: tpudet drop_parents leaves.csv merged.csv --hierarchy hierarchy.json
         tpudet drop_parents leaves.csv merged.csv --classes classes_leaf.csv

With a hierarchy, predictions of labels that have descendants are left out; labels that it lacks
stay. With a class list, such as tpudet build_leaf_classes_list writes, exactly its labels stay.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = rewriting_parser(
        "tpudet drop_parents", "Keep only predictions of leaf labels.", _EPILOG
    )
    choice = parser.add_mutually_exclusive_group()
    add_hierarchy_argument(choice)
    choice.add_argument("--classes", metavar="CSV", help="a list of the classes that stay")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.parents import drop_parents

    return drop_parents(**vars(arguments))
