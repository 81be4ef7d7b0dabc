"""Runs blocks of images through threads, in order, into one submission file."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeVar

from tpudet.detection.submission.errors import NO_BAD_ROWS, BadRowsError, SubmissionError
from tpudet.detection.submission.files import (
    RELEASE_BYTES,
    BlockResult,
    align,
    cut,
    open_submission,
)
from tpudet.detection.submission.fusion.blocks import Block, SubmissionFile
from tpudet.detection.submission.open_images_csv import HEADER_LINE
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file, is_remote

_SMALL_BYTES = 1 << 26  # below it no progress is shown, and 25 ms to import the bar are saved

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_order(
    items: Iterable[_Item], function: Callable[[_Item], _Result], threads: int
) -> Iterator[_Result]:
    """Like `map`, with the calls in threads; at most two items per thread are in flight.

    Threads help as far as the function releases the interpreter lock (the kernel does, and most of
    NumPy on large arrays).
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
    force: bool = True,
    threads: int,
    skip_bad: bool,
) -> BlockResult:
    """Writes the text that `work` returns for each block of images, in their order.

    The file gets its name when it is whole.

    Args:
        target: the submission to write.
        images: from `in_file_order` or `align`.
        work: a pure function, called in threads.
        force: whether an existing target is replaced.
        threads: at least 1.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, with no text; `bad` counts the bad rows left out.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False; nothing is written then.
        UserError: another process writes the target, or has written it meanwhile.
        OSError: the target cannot be written.
    """
    totals = BlockResult(b"", 0, 0, 0, NO_BAD_ROWS)
    for source in images.sources:
        totals = totals._replace(bad=totals.bad.plus(source.bad))
    with claimed_file(target, "wb", force=force) as file:
        file.write(HEADER_LINE.encode())
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
            raise BadRowsError(totals.bad)
    return totals


def write_aligned(
    target: str,
    sources: Sequence[str],
    work: Callable[[Block], BlockResult],
    *,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> tuple[BlockResult, list[int]]:
    """Writes the text that `work` returns for the images of all sources, sorted by id.

    Args:
        target: as of `write_submission_file`, which raises the same, like all that follow.
        sources: paths of submissions, at least one.
        work: its blocks have the rows of an image in any of the files.
        force: whether an existing target is replaced.
        threads: at least 1.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, and of each source the number of images that it lacks.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(open_submission(path)) for path in sources]
        images = align(files)
        totals = write_submission_file(
            target, images, work, force=force, threads=threads, skip_bad=skip_bad
        )
        return totals, [len(images.id_files) - len(file.rows) for file in files]


def run_blocks(
    images: Block, function: Callable[[Block], _Result], threads: int
) -> Iterator[_Result]:
    """Yields the result of a function for each block of images, in their order.

    Shows a progress bar and gives mapped pages back. `write_submission_file` is built on it.

    Args:
        images: from `in_file_order` or `align`.
        function: a pure function, called in threads.
        threads: at least 1.

    Raises:
        SubmissionError: a source was cut while it was read.
    """

    def call(block: Block) -> tuple[_Result, int]:
        for source in block.sources:
            source.require_whole()
        return function(block), block.num_bytes()

    total, unreleased = images.num_bytes(), 0
    with _progress_bar(total) as progress:
        for result, size in map_in_order(cut(images), call, threads):
            if progress:
                progress.update(size)
            unreleased += size
            if unreleased >= RELEASE_BYTES:
                unreleased = 0
                _release(images.sources)
            yield result


def _progress_bar(num_bytes: int) -> AbstractContextManager[Any]:
    """Returns a bar that is shown after two seconds; none for what takes less on any machine."""
    if num_bytes < _SMALL_BYTES:
        return nullcontext()
    from tqdm import tqdm

    return tqdm(total=num_bytes, unit="B", unit_scale=True, delay=2, leave=False)


def check_target(target: str, sources: Iterable[str], *, force: bool) -> None:
    """Refuses to start what could not be written at the end.

    Raises:
        SubmissionError: a source is missing or is the target itself, the target exists and
            `force` is False, or its folder is missing. All mistakes are listed.
    """
    mistakes = []
    for source in sources:
        if not is_file(source):
            mistakes.append(f"no file {source}")
        elif is_same_file(source, target):
            mistakes.append(f"{target} would be read and written; name another file for RESULT")
    if is_file(target) and not force and not any(target in mistake for mistake in mistakes):
        mistakes.append(f"{target} exists; -f replaces it")
    folder = os.path.dirname(target) or "."
    if not is_remote(target) and not os.path.isdir(folder):
        mistakes.append(f"no folder {folder} to write {os.path.basename(target)} in")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def describe(target: str, totals: BlockResult, *remarks: str, read: str = "read") -> str:
    """The summary of a command: totals, remarks that are not empty, bad rows left out."""
    lines = [
        f"{target}: {totals.num_images} images, {totals.num_written} predictions of the "
        f"{totals.num_read} {read}",
        *(f"  {remark}" for remark in remarks if remark),
    ]
    return "\n".join(lines) + totals.bad.describe()


def lacking_images(paths: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Remarks on the files that lack images which others have; `counts` says how many each."""
    return [
        f"{path} has no usable row for {count} of the images"
        for path, count in zip(paths, counts, strict=True)
        if count
    ]


def _release(sources: Iterable[SubmissionFile]) -> None:
    for source in sources:
        source.release()


def is_same_file(source: str, target: str) -> bool:
    """Whether two paths name one file, through links too."""
    if is_remote(source) or is_remote(target):
        return source == target
    return os.path.exists(target) and os.path.samefile(source, target)
