"""The command `add_parents.py`: predictions of a label repeated for all it is a kind of."""

import argparse
import sys
from collections.abc import Sequence

from tpudet.detection.submission.ancestors import AncestorTable, ancestor_table, with_ancestors
from tpudet.detection.submission.files import Block, open_submission
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.labels import (
    UnknownLabels,
    add_hierarchy_argument,
    default_hierarchy,
    read_hierarchy_file,
)
from tpudet.detection.submission.rewrite import describe, rewrite_submission, rewriting_parser
from tpudet.detection.submission.writer import check_target
from tpudet.trainkit.command_line import run_command

_EPILOG = """\
example: add_parents.py expanded.csv leaves.csv --hierarchy challenge-2019-label500-hierarchy.json

Behind a prediction come its ancestors, with its box and score; the root is none of them. Of a label
that has descendants an image keeps each box once, with the best score. Doing it twice changes
nothing. drop_parents.py takes ancestors away, those that were predicted among them.
"""


def add_ancestors(rows: ScannedRows, table: AncestorTable) -> ScannedRows:
    """Adds the ancestors of the predictions; `rows` were scanned with the labels of the table."""
    chosen, labels = with_ancestors(
        table, rows.images(), rows.label_numbers, rows.scores, rows.boxes
    )
    return rows.take(chosen)._replace(label_numbers=labels)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = rewriting_parser(
        "add_parents.py", "Add the ancestors of each prediction's label.", _EPILOG
    )
    add_hierarchy_argument(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, source = arguments.result, arguments.source
    hierarchy = arguments.hierarchy or default_hierarchy()
    check_target(target, [source, hierarchy], force=arguments.force, threads=arguments.threads)
    table = ancestor_table(read_hierarchy_file(hierarchy))
    unknown = UnknownLabels()

    def change(block: Block, rows: ScannedRows) -> ScannedRows:
        unknown.add(block, rows)
        return add_ancestors(rows, table)

    with open_submission(source) as opened:
        totals = rewrite_submission(
            target,
            opened,
            change,
            labels=table.labels,
            threads=arguments.threads,
            skip_bad=arguments.skip_bad,
        )
    return describe(
        target, totals, unknown.describe(f"have labels that {hierarchy} lacks and stay as they are")
    )


if __name__ == "__main__":
    sys.exit(main())
