"""Rewrites a submission block by block with changed predictions."""

from collections.abc import Callable, Sequence

from tpudet.detection.submission.files import (
    BlockResult,
    in_file_order,
    open_submission,
    print_block,
    scan,
)
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows
from tpudet.detection.submission.open_images_csv import DECIMALS
from tpudet.detection.submission.writer import write_submission_file


def rewrite_submission(
    target: str,
    source: str,
    change: Callable[[Block, ScannedRows], ScannedRows],
    *,
    labels: Sequence[str] = (),
    score_decimals: int = DECIMALS,
    box_decimals: int = DECIMALS,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> BlockResult:
    """Writes the images of a submission in their order, with changed predictions.

    Args:
        target: the file to write.
        source: the submission to read.
        change: from the predictions of a block to those that are written; called in threads.
        labels: what label numbers index, before and after the change.
        score_decimals: 0 to 9 decimals.
        box_decimals: likewise, of the coordinates.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Raises:
        SubmissionError: the source is not a submission.
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

    with open_submission(source) as opened:
        images = in_file_order(opened)
        return write_submission_file(
            target, images, work, force=force, threads=threads, skip_bad=skip_bad
        )
