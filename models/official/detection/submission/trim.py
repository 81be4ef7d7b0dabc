"""Shorter submissions: without low scores, with fewer predictions, with fewer decimals."""

from functools import partial
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.files import in_file_order, open_submission, scan
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows, SubmissionFile
from tpudet.detection.submission.mask_header import is_mask_submission
from tpudet.detection.submission.mask_rewrite import above, best_of_file, rewrite_masks
from tpudet.detection.submission.ranks import FIRST, require_room, score_ranks
from tpudet.detection.submission.rewrite import rewrite_submission
from tpudet.detection.submission.writer import check_target, describe, run_blocks

MAX_DECIMALS = 9
_NUM_STRETCHES = 64


def trim_by_threshold(
    target: str,
    source: str,
    *,
    min_conf: float,
    keep_first: bool,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Leaves out predictions with a score below `min_conf`; every image stays.

    Args:
        target: the submission to write.
        source: the submission to read.
        min_conf: the lowest score, 0..1.
        keep_first: whether the first prediction of an image stays whatever its score.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The summary.

    Raises:
        SubmissionError: the arguments or the source are not usable.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    check_target(target, [source], force=force)
    if is_mask_submission(source):
        best = partial(above, min_conf=min_conf, keep_first=keep_first)
        return describe(target, rewrite_masks(target, source, best, force=force, skip_bad=skip_bad))

    def change(_: Block, rows: ScannedRows) -> ScannedRows:
        chosen = rows.scores >= min_conf
        if keep_first:
            chosen |= rows.first_of_image()
        return rows.take(chosen)

    totals = rewrite_submission(
        target, source, change, force=force, threads=threads, skip_bad=skip_bad
    )
    return describe(target, totals)


def trim_decimals(
    target: str,
    source: str,
    *,
    digits: int,
    score_digits: int,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Rounds coordinates to `digits` and scores to `score_digits` decimals, each 0 to 9.

    The other arguments, the result and the errors are those of `trim_by_threshold`.
    """
    mistakes = [
        f"--{name} {value} must be in 0..{MAX_DECIMALS}"
        for name, value in (("digits", digits), ("score_digits", score_digits))
        if not 0 <= value <= MAX_DECIMALS
    ]
    if mistakes:
        raise SubmissionError("\n".join(mistakes))
    check_target(target, [source], force=force)
    if is_mask_submission(source):
        totals = rewrite_masks(
            target,
            source,
            lambda predictions: predictions,
            score_decimals=score_digits,
            force=force,
            skip_bad=skip_bad,
        )
        return describe(target, totals)
    totals = rewrite_submission(
        target,
        source,
        lambda _, rows: rows,
        score_decimals=score_digits,
        box_decimals=digits,
        force=force,
        threads=threads,
        skip_bad=skip_bad,
    )
    return describe(target, totals)


def trim_to_number(
    target: str,
    source: str,
    *,
    max_num: int,
    keep_first: bool,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Keeps the `max_num` predictions with the best scores of the whole file.

    Scores count as they are printed; of equal ones the earlier in the file stay. The source is read
    twice. Memory holds 64 histograms of the 100,001 scores (50 MB), whatever `max_num` is.

    Args:
        target: the submission to write.
        source: the submission to read.
        max_num: at least 0.
        keep_first: whether the first prediction of each image ranks before all others.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The summary.

    Raises:
        SubmissionError: the source is not usable, or `keep_first` keeps more than `max_num`.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    check_target(target, [source], force=force)
    if is_mask_submission(source):
        return _trim_masks_to_number(
            target, source, max_num, keep_first=keep_first, force=force, skip_bad=skip_bad
        )
    with open_submission(source) as opened:
        cut = find_cut(opened, max_num, keep_first=keep_first, threads=threads)

    def change(block: Block, rows: ScannedRows) -> ScannedRows:
        return best_of_block(cut, block, rows, keep_first=keep_first) if cut else rows

    totals = rewrite_submission(
        target, source, change, force=force, threads=threads, skip_bad=skip_bad
    )
    score = cut.rank / 1e5 if cut else None
    return describe(target, totals, _remark(score, max_num, keep_first=keep_first))


def _remark(score: float | None, max_num: int, *, keep_first: bool) -> str:
    """Says which predictions stay: all where `score` is None."""
    if score is None:
        return f"no more than {max_num} predictions: all are kept"
    first = "the first of each image is kept; " if keep_first else ""
    return f"{first}kept are scores above {score:.5f}, and the earlier ones equal to it"


def _trim_masks_to_number(
    target: str, source: str, max_num: int, *, keep_first: bool, force: bool, skip_bad: bool
) -> str:
    best = best_of_file(source, max_num, keep_first=keep_first)
    keep, score = best or ((lambda predictions: predictions), None)
    totals = rewrite_masks(target, source, keep, force=force, skip_bad=skip_bad)
    return describe(target, totals, _remark(score, max_num, keep_first=keep_first))


class Cut(NamedTuple):
    """The end of the N best predictions."""

    rank: int  # the score in units of 0.00001: better ones stay
    line: int  # of this very score, those in lines before it stay
    num_in_line: int  # and how many of those in it


def find_cut(source: SubmissionFile, max_num: int, *, keep_first: bool, threads: int) -> Cut | None:
    """Finds the end of the best `max_num` predictions of a file; None if it has no more than that.

    Reads the file once, and a 64th of it once more. Bad rows do not count. For the arguments and
    errors see `trim_to_number`.
    """
    images = in_file_order(source)
    size = -(-len(images.id_files) // _NUM_STRETCHES) or 1
    histogram = _histogram(images, size, keep_first, threads)
    if histogram.sum() <= max_num:
        return None
    require_room(int(histogram[:, FIRST].sum()), max_num)
    at_least = histogram.sum(axis=0)[::-1].cumsum()[::-1]  # predictions of this rank or better
    rank = int(np.flatnonzero(at_least > max_num)[-1])
    ties = histogram[:, rank]
    num_kept = max_num - int(at_least[rank] - ties.sum())  # ties that stay
    stretch = int(np.searchsorted(ties.cumsum(), num_kept, side="right"))
    num_kept -= int(ties[:stretch].sum())
    first, last = stretch * size, min((stretch + 1) * size, len(images.id_files))

    def lines_of_ties(block: Block) -> np.ndarray:
        rows, _ = scan(block)
        return block.piece_lines[rows.images()[_ranks(rows, keep_first) == rank]]

    lines = np.concatenate(list(run_blocks(images.part(first, last), lines_of_ties, threads)))
    line = int(lines[num_kept])
    return Cut(rank, line, int((lines[:num_kept] == line).sum()))


def _histogram(images: Block, size: int, keep_first: bool, threads: int) -> np.ndarray:
    """[stretches, ranks] int64: the count of each rank in each stretch of `size` images."""
    first_lines = images.piece_lines[::size]
    num_ranks = FIRST + 1

    def count(block: Block) -> tuple[int, np.ndarray]:
        """The block's first stretch; counts by stretch and rank from there on, flattened."""
        rows, _ = scan(block)
        stretches = np.searchsorted(first_lines, block.piece_lines, side="right") - 1
        first = int(stretches[0])
        places = (stretches - first)[rows.images()] * num_ranks + _ranks(rows, keep_first)
        return first * num_ranks, np.bincount(places)

    flat = np.zeros(len(first_lines) * num_ranks, np.int64)
    for start, counts in run_blocks(images, count, threads):
        flat[start : start + len(counts)] += counts
    return flat.reshape(-1, num_ranks)


def best_of_block(cut: Cut, block: Block, rows: ScannedRows, *, keep_first: bool) -> ScannedRows:
    """Returns the predictions of a block on the better side of a cut."""
    ranks = _ranks(rows, keep_first)
    chosen = ranks > cut.rank
    ties = np.flatnonzero(ranks == cut.rank)
    lines = block.piece_lines[rows.images()[ties]]
    chosen[ties[lines < cut.line]] = True
    chosen[ties[lines == cut.line][: cut.num_in_line]] = True
    return rows.take(chosen)


def _ranks(rows: ScannedRows, keep_first: bool) -> np.ndarray:
    return score_ranks(rows.scores, rows.first_of_image() if keep_first else None)
