"""The command `tpudet add_parents`: repeats predictions for the ancestors of their labels."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_hierarchy_argument, rewriting_parser
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: tpudet add_parents expanded.csv leaves.csv --hierarchy hierarchy.json

Each prediction is followed by its ancestors, with its box and score; the root is left out. Of a
label that has descendants an image keeps each box once, with the best score. Doing it twice changes
nothing. tpudet drop_parents removes ancestors, those that were predicted included.
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = rewriting_parser(
        "tpudet add_parents", "Add the ancestors of each prediction's label.", _EPILOG
    )
    add_hierarchy_argument(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.parents import add_parents

    return add_parents(**vars(arguments))
