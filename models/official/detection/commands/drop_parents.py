"""The command `drop_parents.py`: only predictions of leaf labels stay."""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from tpudet.detection.submission.files import Block, open_submission
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.labels import (
    UnknownLabels,
    add_hierarchy_argument,
    default_hierarchy,
    read_class_file,
    read_hierarchy_file,
)
from tpudet.detection.submission.rewrite import describe, rewrite_submission, rewriting_parser
from tpudet.detection.submission.writer import check_target
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: drop_parents.py leaves.csv merged.csv --hierarchy challenge-2019-label500-hierarchy.json
         drop_parents.py leaves.csv merged.csv --classes classes_leaf.csv

With a hierarchy, predictions of labels that have descendants are left out; labels that it lacks
stay. With a class list, such as build_leaf_classes_list.py writes, exactly its labels stay.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = rewriting_parser("drop_parents.py", "Keep only predictions of leaf labels.", _EPILOG)
    choice = parser.add_mutually_exclusive_group()
    add_hierarchy_argument(choice)
    choice.add_argument("--classes", metavar="CSV", help="a list of the classes that stay")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, source = arguments.result, arguments.source
    file = arguments.classes or arguments.hierarchy or default_hierarchy()
    check_target(target, [source, file], force=arguments.force, threads=arguments.threads)
    labels, stays = _what_stays(arguments.classes, file)
    unknown = UnknownLabels()

    def change(block: Block, rows: ScannedRows) -> ScannedRows:
        unknown.add(block, rows)
        return rows.take(stays[rows.label_numbers])

    with open_submission(source) as opened:
        totals = rewrite_submission(
            target,
            opened,
            change,
            labels=labels,
            threads=arguments.threads,
            skip_bad=arguments.skip_bad,
        )
    fate = "are left out" if arguments.classes else "stay"
    return describe(target, totals, unknown.describe(f"have labels that {file} lacks and {fate}"))


def _what_stays(classes: str | None, file: str) -> tuple[tuple[str, ...], np.ndarray]:
    """Known labels, and [labels + 1] bool: which stay, at last for those that are not known."""
    if classes:
        labels = tuple(entry.identifier for entry in read_class_file(file))
        return labels, np.array([True] * len(labels) + [False])
    hierarchy = read_hierarchy_file(file)
    leaves = [not hierarchy.children[label] for label in hierarchy.labels]
    return hierarchy.labels, np.array([*leaves, True])


if __name__ == "__main__":
    sys.exit(main())
