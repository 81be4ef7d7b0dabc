"""One submission made of another, its predictions changed block by block; what commands share."""

import argparse
from collections.abc import Callable, Sequence

from tpudet.detection.submission.files import (
    Block,
    BlockResult,
    SubmissionFile,
    in_file_order,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.writer import (
    add_writing_arguments,
    describe_bad,
    write_submission_file,
)

EXIT_CODES = "exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)\n"


def rewrite_submission(
    target: str,
    source: SubmissionFile,
    change: Callable[[Block, ScannedRows], ScannedRows],
    *,
    labels: Sequence[str] = (),
    score_decimals: int = 5,
    box_decimals: int = 5,
    threads: int = 1,
    skip_bad: bool = False,
) -> BlockResult:
    """Writes the images of a submission in their order, with changed predictions.

    Args:
        target: the file to write.
        source: an open submission.
        change: from the predictions of a block to those that are written; called in threads.
        labels: what the numbers of labels count through, before and after the change.
        score_decimals: 0 to 9 places behind the point.
        box_decimals: likewise, of the coordinates.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    known = [label.encode() for label in labels]

    def work(block: Block) -> BlockResult:
        rows, faults = scan(block, known)
        return print_block(
            block,
            change(block, rows),
            faults,
            labels=known,
            score_decimals=score_decimals,
            box_decimals=box_decimals,
            num_read=len(rows.scores),
        )

    return write_submission_file(
        target, in_file_order(source), work, threads=threads, skip_bad=skip_bad
    )


def rewriting_parser(program: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser of RESULT FILE and the flags of commands that write."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=epilog + "\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", metavar="RESULT", help="the submission to write")
    parser.add_argument("source", metavar="FILE", help="the submission to read")
    add_writing_arguments(parser)
    return parser


def describe(target: str, totals: BlockResult, *remarks: str) -> str:
    """The summary of a command: totals, remarks that are not empty, bad rows left out."""
    lines = [
        f"{target}: {totals.num_images} images, {totals.num_written} predictions of the "
        f"{totals.num_read} read",
        *(f"  {remark}" for remark in remarks if remark),
    ]
    return "\n".join(lines) + describe_bad(totals.bad)
