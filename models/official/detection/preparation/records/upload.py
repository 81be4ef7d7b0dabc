"""Copies prepared sets to a bucket or another folder and verifies the copies; resumable.

A folder keeps its name: `converted/part_0` is copied to `DESTINATION/part_0`. A copy gets its final
name only when it is complete; in a bucket, this rename is a copy inside the bucket.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.files.storage import TEMPORARY_SUFFIX, open_bytes, remove_if_there, whole_file
from tpudet.trainkit.record_manifest import PROGRESS_SUFFIX

_BLOCK_BYTES = 1 << 22
_FAILURES_SHOWN = 10


class Transfer(NamedTuple):
    """One file to copy."""

    source: str
    destination: str
    size: int  # bytes
    modified_ns: int  # of the source, nanoseconds since 1970; 0 if unknown


def upload(
    sources: Sequence[str],
    destination: str,
    *,
    threads: int,
    checksum: bool,
    overwrite: bool,
    dry_run: bool,
    delete_source: bool,
) -> str:
    """Copies files and folders, and verifies every copy.

    Args:
        sources: files or folders, local or `scheme://`.
        destination: folder for the copies, each under its own name.
        threads: copies at the same time.
        checksum: compare and verify contents instead of sizes and times.
        overwrite: replace files that differ.
        dry_run: only print what would be copied.
        delete_source: delete the source files after all contents are verified.

    Returns:
        A summary.

    Raises:
        UserError: as `plan_transfers`, `copy_all` and `delete_sources`, or an existing file differs
            and `overwrite` is false; nothing is copied then.
    """
    transfers = plan_transfers(sources, destination)
    checksum = checksum or delete_source
    missing = _select_missing(transfers, threads=threads, checksum=checksum, overwrite=overwrite)
    size = sum(transfer.size for transfer in missing)
    if dry_run:
        for transfer in missing:
            print(f"{transfer.source} -> {transfer.destination} ({transfer.size} bytes)")
        return f"Dry run: {len(missing)} of {len(transfers)} file(s), {size} bytes would be copied."
    copy_all(missing, threads=threads, checksum=checksum)
    how = "size and SHA-256" if checksum else "size"
    existing = len(transfers) - len(missing)
    summary = (
        f"{len(missing)} file(s), {size} bytes copied, {existing} already existed; verified by "
        f"{how}."
    )
    if delete_source:
        delete_sources(transfers)
        summary += f"\n{len(transfers)} source file(s) deleted; empty folders are kept."
    return summary


def _select_missing(
    transfers: Sequence[Transfer], *, threads: int, checksum: bool, overwrite: bool
) -> list[Transfer]:
    """Returns the transfers whose copies do not exist yet or are to be replaced."""
    with ThreadPoolExecutor(threads) as pool:
        compared = pool.map(lambda transfer: is_same(transfer, checksum=checksum), transfers)
        same = list(tqdm(compared, total=len(transfers), unit="file", desc="compare", delay=1))
    differing = [t.destination for t, s in zip(transfers, same, strict=True) if s is False]
    if differing and not overwrite:
        verb = "exists" if len(differing) == 1 else "exist"
        raise UserError(
            f"{listing(differing)} already {verb} with other content or older than the source. "
            "Pass --checksum to compare contents if only the times differ, --overwrite to replace "
            "them, or another DESTINATION. Nothing was copied."
        )
    return [t for t, s in zip(transfers, same, strict=True) if not s]


def plan_transfers(sources: Sequence[str], destination: str) -> list[Transfer]:
    """Lists every file below the sources with its destination, sorted by name.

    Args:
        sources: files or folders, local or `scheme://`.
        destination: folder for the copies, each under its own name.

    Raises:
        UserError: a source is missing, empty, unfinished or overlaps the destination, or two files
            would get the same name. All mistakes are listed.
    """
    transfers: list[Transfer] = []
    mistakes: list[str] = []
    for source in map(_absolute, sources):
        target = os.path.join(_absolute(destination), os.path.basename(source))
        if not storage.exists(source):
            mistakes.append(f"{source} does not exist.")
        elif _overlap(source, target):
            mistakes.append(f"{source} and {target} are the same, or one is inside the other.")
        else:
            found, unfinished = _files_below(source)
            mistakes += [
                f"{path} is of an unfinished run: finish it, or remove it." for path in unfinished
            ]
            if not found:
                mistakes.append(f"{source} contains no files.")
            transfers += [_transfer(path, target + path.removeprefix(source)) for path in found]
    counts = Counter(transfer.destination for transfer in transfers)
    mistakes += [f"{path} would be written {n} times." for path, n in counts.items() if n > 1]
    if mistakes:
        raise UserError("\n  ".join(["Nothing was copied.", *mistakes]))
    return transfers


def _absolute(path: str) -> str:
    """Returns a path without `.`, `..` and a trailing `/`, so that it ends with its own name."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _transfer(source: str, destination: str) -> Transfer:
    state = storage.stat(source)
    return Transfer(source, destination, state.size, state.modified_ns)


def _files_below(source: str) -> tuple[list[str], list[str]]:
    """Returns the files of a source, a folder or a file, and the traces of unfinished runs."""
    if not storage.is_folder(source):
        return [source], []
    found, unfinished = [], []
    for folder, _, names in storage.walk(source):
        if folder.rstrip("/").endswith(PROGRESS_SUFFIX):
            unfinished.append(folder)
            continue
        for path in (os.path.join(folder, name) for name in names if name):
            is_part = path.endswith((TEMPORARY_SUFFIX, ".claim.json"))
            (unfinished if is_part else found).append(path)
    return sorted(found), unfinished


def _overlap(source: str, target: str) -> bool:
    first, second = (
        (path if "://" in path else os.path.realpath(path)).rstrip("/") + "/"
        for path in (source, target)
    )
    return first.startswith(second) or second.startswith(first)


def is_same(transfer: Transfer, *, checksum: bool) -> bool | None:
    """Whether the destination is a copy of the source; None if there is no such file."""
    try:
        state = storage.stat(transfer.destination)
    except FileNotFoundError:
        return None
    if state.is_folder:  # ram:// reports this for every prefix of a name
        return None
    if state.size != transfer.size:
        return False
    if checksum:
        return file_digest(transfer.source) == file_digest(transfer.destination)
    known = state.modified_ns > 0 and transfer.modified_ns > 0
    return not known or state.modified_ns >= transfer.modified_ns


def copy_all(transfers: Sequence[Transfer], *, threads: int, checksum: bool) -> None:
    """Copies files in parallel and verifies each copy, with a progress bar in bytes.

    Args:
        transfers: the files; existing destinations are replaced.
        threads: copies at the same time.
        checksum: read every copy back and compare contents, not only sizes.

    Raises:
        UserError: some copies failed; the others are kept.
    """
    for folder in sorted({os.path.dirname(transfer.destination) for transfer in transfers}):
        storage.make_folder(folder)
    total = sum(transfer.size for transfer in transfers)
    failures: list[str] = []
    lock, stopped = threading.Lock(), threading.Event()
    with (
        tqdm(total=total, unit="B", unit_scale=True, desc="upload") as bar,
        ThreadPoolExecutor(threads) as pool,
    ):

        def progress(amount: int) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            with lock:
                bar.update(amount)

        futures = [pool.submit(_copy, t, progress, checksum=checksum) for t in transfers]
        try:
            for future in as_completed(futures):
                if (failure := future.result()) is not None:
                    failures.append(failure)
        except BaseException:
            stopped.set()  # running copies stop at their next block
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        raise UserError(
            f"{len(failures)} of {len(transfers)} copies failed; the same command resumes:\n  "
            + "\n  ".join(failures[:_FAILURES_SHOWN])
        )


def _copy(transfer: Transfer, progress: Callable[[int], Any], *, checksum: bool) -> str | None:
    """Copies and verifies one file; returns an error message or None."""
    path = transfer.destination
    try:
        with open_bytes(transfer.source) as source, whole_file(path, "wb") as copy:
            copy.write(b"")  # also creates an empty file
            while block := source.read(_BLOCK_BYTES):
                copy.write(block)
                progress(len(block))
        size = storage.stat(path).size
        if size != transfer.size:
            return f"{path} has {size} bytes, its source {transfer.size}"
        if checksum and file_digest(path) != file_digest(transfer.source):
            return f"{path} differs from its source"
    except OSError as error:
        return f"{path}: {storage.reason(error)}"
    return None


def delete_sources(transfers: Sequence[Transfer]) -> None:
    """Deletes source files whose copies were verified.

    Raises:
        UserError: a file was changed since it was copied; it and those after it are kept.
    """
    for transfer in transfers:
        state = storage.stat(transfer.source)
        if (state.size, state.modified_ns) != (transfer.size, transfer.modified_ns):
            raise UserError(f"{transfer.source} was changed in the meantime and is not deleted.")
        remove_if_there(transfer.source)
