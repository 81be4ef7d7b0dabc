"""The command `trim_sub_by_num_of_predicts.py`: the best N predictions of a whole submission."""

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.files import (
    Block,
    SubmissionError,
    SubmissionFile,
    in_file_order,
    open_submission,
    scan,
)
from tpudet.detection.submission.fusion.printed_numbers import printed_units
from tpudet.detection.submission.fusion.scanned_rows import ScannedRows
from tpudet.detection.submission.rewrite import describe, rewrite_submission, rewriting_parser
from tpudet.detection.submission.writer import check_target, run_blocks
from tpudet.trainkit.command_line import run_command

MAX_NUM = 150_000_000
_FIRST = 100_001  # rank of an image's first prediction with keep_first: above the score 1.00000
_NUM_STRETCHES = 64
_EPILOG = """\
example: trim_sub_by_num_of_predicts.py trimmed.csv merged.csv 150000000

One cut goes through all images: the predictions with the best scores stay, exactly N of them.
Scores count as they are written, with 5 decimals; of equal ones those stay that come earlier in
FILE. A file of at most N predictions keeps them all. With --keep_first the first prediction of
each image goes before all others, and is one of the N.

FILE is read twice. Memory holds how often each of the 100,001 scores occurs in each of 64
stretches of the file (50 MB), whatever N is.
"""


class Cut(NamedTuple):
    """Where the N best predictions end."""

    rank: int  # the score in units of 0.00001: better ones stay
    line: int  # of this very score, those in lines before it stay
    num_in_line: int  # and so many of those in it


def find_cut(
    source: SubmissionFile, max_num: int, *, keep_first: bool = False, threads: int = 1
) -> Cut | None:
    """Finds where the best `max_num` predictions of a file end; None: it has no more than that.

    Reads the file once, and a 64th of it once more.

    Args:
        source: an open submission; bad rows do not count.
        max_num: how many shall stay, at least 0.
        keep_first: whether the first prediction of an image goes before all others.
        threads: at least 1; the result does not depend on it.

    Raises:
        SubmissionError: with `keep_first`, more images than `max_num` have predictions.
    """
    images = in_file_order(source)
    size = -(-len(images.id_files) // _NUM_STRETCHES) or 1
    histogram = _histogram(images, size, keep_first, threads)
    if histogram.sum() <= max_num:
        return None
    num_first = int(histogram[:, _FIRST].sum())
    if num_first > max_num:
        raise SubmissionError(
            f"--keep_first keeps a prediction of each of {num_first} images: more than {max_num}"
        )
    at_least = histogram.sum(axis=0)[::-1].cumsum()[::-1]  # predictions of this rank or better
    rank = int(np.flatnonzero(at_least > max_num)[-1])
    ties = histogram[:, rank]
    num_kept = max_num - int(at_least[rank] - ties.sum())  # so many ties stay
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
    """[stretches, ranks] int64: how often a rank occurs in each stretch of `size` images."""
    first_lines = images.piece_lines[::size]
    num_ranks = _FIRST + 1

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


def best_of_block(
    cut: Cut, block: Block, rows: ScannedRows, *, keep_first: bool = False
) -> ScannedRows:
    """Returns the predictions of a block that are on the better side of a cut."""
    ranks = _ranks(rows, keep_first)
    chosen = ranks > cut.rank
    ties = np.flatnonzero(ranks == cut.rank)
    lines = block.piece_lines[rows.images()[ties]]
    chosen[ties[lines < cut.line]] = True
    chosen[ties[lines == cut.line][: cut.num_in_line]] = True
    return rows.take(chosen)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 wrong arguments or unusable files."""
    parser = rewriting_parser(
        "trim_sub_by_num_of_predicts.py", "Keep the N best predictions of all images.", _EPILOG
    )
    parser.add_argument("number", metavar="N", type=int, nargs="?", help="how many stay")
    parser.add_argument(
        "--max_num", type=int, metavar="N", help=f"the same as N (default: {MAX_NUM})"
    )
    parser.add_argument(
        "--keep_first", action="store_true", help="let each image keep its first prediction"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    target, source, keep_first = arguments.result, arguments.source, arguments.keep_first
    given = {value for value in (arguments.number, arguments.max_num) if value is not None}
    if len(given) > 1:
        raise SubmissionError(
            f"N is {arguments.number} and --max_num {arguments.max_num}; give one of them"
        )
    max_num = given.pop() if given else MAX_NUM
    if max_num < 0:
        raise SubmissionError(f"N is {max_num}; it must not be negative")
    check_target(target, [source], force=arguments.force, threads=arguments.threads)
    with open_submission(source) as opened:
        cut = find_cut(opened, max_num, keep_first=keep_first, threads=arguments.threads)

        def change(block: Block, rows: ScannedRows) -> ScannedRows:
            return best_of_block(cut, block, rows, keep_first=keep_first) if cut else rows

        totals = rewrite_submission(
            target, opened, change, threads=arguments.threads, skip_bad=arguments.skip_bad
        )
    return describe(target, totals, _about(cut, max_num, keep_first))


def _about(cut: Cut | None, max_num: int, keep_first: bool) -> str:
    if cut is None:
        return f"no more than {max_num} predictions: all stay"
    first = "the first of each image stays; " if keep_first else ""
    return f"{first}scores above {cut.rank / 1e5:.5f} stay, and of those equal to it the earlier"


def _ranks(rows: ScannedRows, keep_first: bool) -> np.ndarray:
    ranks = printed_units(rows.scores)
    if keep_first:
        ranks[rows.first_of_image()] = _FIRST
    return ranks


if __name__ == "__main__":
    sys.exit(main())
