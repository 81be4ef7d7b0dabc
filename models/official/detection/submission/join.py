"""Joins submissions of parts of the classes into one of all classes."""

from collections.abc import Sequence

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.files import BlockResult, print_block, scan
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows
from tpudet.detection.submission.mask_header import have_masks
from tpudet.detection.submission.mask_rewrite import join_masks
from tpudet.detection.submission.writer import (
    check_target,
    describe,
    lacking_images,
    write_aligned,
)


def join_submissions(
    target: str,
    sources: Sequence[str],
    *,
    min_conf: float,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Joins submissions by image id.

    Args:
        target: the submission to write.
        sources: paths of submissions, at least one.
        min_conf: predictions with a score above it stay, 0 <= min_conf < 1.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The summary.

    Raises:
        SubmissionError: the arguments or a source are not usable.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    if not 0 <= min_conf < 1:
        raise SubmissionError(f"--min_conf {min_conf} must be in 0..1, 1 excluded")
    if repeated := sorted({path for path in sources if sources.count(path) > 1}):
        raise SubmissionError(f"named twice: {', '.join(repeated)}")
    check_target(target, sources, force=force)

    def work(block: Block) -> BlockResult:
        rows, faults = scan(block)
        joined = by_descending_score(rows.take(rows.scores > min_conf))
        return print_block(block, joined, faults, num_read=len(rows.scores))

    if have_masks(sources):
        totals, lacking = join_masks(
            target, sources, min_conf=min_conf, force=force, skip_bad=skip_bad
        )
    else:
        totals, lacking = write_aligned(
            target, sources, work, force=force, threads=threads, skip_bad=skip_bad
        )
    return describe(target, totals, *lacking_images(sources, lacking))


def by_descending_score(rows: ScannedRows) -> ScannedRows:
    """Sorts the predictions of each image; equal scores keep their order."""
    return rows.take(np.lexsort((-rows.scores, rows.images())))
