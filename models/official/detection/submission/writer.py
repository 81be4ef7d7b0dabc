"""Blocks of images through threads into one file, in their order; what the commands share."""

import argparse
import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from tpudet.detection.submission.files import (
    HEADER,
    RELEASE_BYTES,
    BadRows,
    Block,
    BlockResult,
    SubmissionError,
    SubmissionFile,
    cut,
)
from tpudet.detection.submission.fusion.bad_rows import BadRowsError
from tpudet.trainkit.files.storage import (
    is_file,
    is_remote,
    whole_file,
)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_order(
    items: Iterable[_Item], function: Callable[[_Item], _Result], threads: int
) -> Iterator[_Result]:
    """Like `map`, with the calls in threads; at most two items a thread are under way or waiting.

    The function gains from threads as far as it releases the interpreter lock (the kernel does,
    and most of NumPy on large arrays).
    """
    if threads == 1:
        yield from map(function, items)
        return
    waiting: collections.deque[concurrent.futures.Future[_Result]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def write_submission_file(
    target: str,
    images: Block,
    work: Callable[[Block], BlockResult],
    *,
    threads: int,
    skip_bad: bool,
) -> BlockResult:
    """Writes what `work` makes of each block of images, in their order, whatever the threads.

    The file is written beside its final name and moved when it is whole.

    Args:
        target: the submission to write; what is there is replaced.
        images: from `in_file_order` or `align`.
        work: a pure function, called in threads.
        threads: at least 1.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, with no text; `bad` counts the bad rows left out.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False; nothing is written then.
        OSError: the target cannot be written.
    """
    totals = BlockResult(b"", 0, 0, 0, BadRows([], 0))
    for source in images.sources:
        totals = totals._replace(bad=totals.bad.plus(source.bad))
    with whole_file(target, "wb") as file:
        file.write(HEADER)
        for result in run_blocks(images, work, threads):
            totals = BlockResult(
                b"",
                totals.num_images + result.num_images,
                totals.num_read + result.num_read,
                totals.num_written + result.num_written,
                totals.bad.plus(result.bad),
            )
            if skip_bad or not totals.bad.total:
                file.write(result.text)
        if totals.bad.total and not skip_bad:
            raise BadRowsError(totals.bad.shown, totals.bad.total)
    return totals


def run_blocks(
    images: Block, function: Callable[[Block], _Result], threads: int
) -> Iterator[_Result]:
    """Yields what a function makes of each block of images, in their order.

    There is a progress bar, and mapped pages are given back on the way. For a first pass that
    writes nothing; `write_submission_file` is built on it.

    Args:
        images: from `in_file_order` or `align`.
        function: a pure function, called in threads.
        threads: at least 1.
    """

    def call(block: Block) -> tuple[_Result, int]:
        return function(block), block.num_bytes()

    total, unreleased = images.num_bytes(), 0
    with tqdm(total=total, unit="B", unit_scale=True, delay=2, leave=False) as progress:
        for result, size in map_in_order(cut(images), call, threads):
            progress.update(size)
            unreleased += size
            if unreleased >= RELEASE_BYTES:
                unreleased = 0
                _release(images.sources)
            yield result


def add_writing_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds -f, --skip_bad and --threads, which every command that writes a submission has."""
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT if it exists")
    parser.add_argument("--skip_bad", action="store_true", help="leave bad rows out and count them")
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        metavar="N",
        help="default: the cores at hand (%(default)s); the result does not depend on it",
    )


def check_target(target: str, sources: Iterable[str], *, force: bool, threads: int = 1) -> None:
    """Refuses to start where the end would be an error.

    Raises:
        SubmissionError: a source is missing or is the target itself, the target is there and not
            to be replaced, or the number of threads is below 1. All mistakes are listed.
    """
    mistakes = []
    for source in sources:
        if not is_file(source):
            mistakes.append(f"no file {source}")
        elif _same_file(source, target):
            mistakes.append(f"{target} is to be read and written; name another file for RESULT")
    if is_file(target) and not force and not any(target in mistake for mistake in mistakes):
        mistakes.append(f"{target} exists; -f replaces it")
    folder = os.path.dirname(target) or "."
    if not is_remote(target) and not os.path.isdir(folder):
        mistakes.append(f"no folder {folder} to write {os.path.basename(target)} in")
    if threads < 1:
        mistakes.append(f"--threads {threads}: at least 1 is needed")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def describe_bad(bad: BadRows) -> str:
    """A line for the summary and the rows themselves; empty where there were none."""
    if not bad.total:
        return ""
    rows = "\n".join(f"    {row.path}, line {row.line}: {row.reason}" for row in bad.shown)
    more = f"\n    … and {bad.total - len(bad.shown)} more" if bad.total > len(bad.shown) else ""
    return f"\n  {bad.total} bad rows left out:\n{rows}{more}"


def _release(sources: Iterable[SubmissionFile]) -> None:
    for source in sources:
        source.release()


def _same_file(source: str, target: str) -> bool:
    if is_remote(source) or is_remote(target):
        return source == target
    return os.path.exists(target) and os.path.samefile(source, target)
