"""Copies files between disks and buckets, and verifies each copy.

A copy gets its name only when it is complete; in a bucket, this rename is a copy inside the bucket.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.files.storage import open_bytes, remove_if_there, whole_file

_BLOCK_BYTES = 1 << 22
_FAILURES_SHOWN = 10


class Transfer(NamedTuple):
    """One file to copy."""

    source: str
    destination: str
    size: int  # bytes
    modified_ns: int  # of the source, nanoseconds since 1970; 0 if unknown


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


def copy_all(
    transfers: Sequence[Transfer],
    *,
    threads: int,
    checksum: bool,
    verify_claims: Callable[[str], None],
) -> None:
    """Copies files in parallel and verifies each copy, with a progress bar in bytes.

    Args:
        transfers: the files; existing destinations are replaced.
        threads: copies at the same time.
        checksum: read every copy back and compare contents, not only sizes.
        verify_claims: called with each destination before the copy gets its name there.

    Raises:
        ClaimError: as `verify_claims` raises.
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

        futures = [
            pool.submit(_copy, t, progress, checksum=checksum, verify_claims=verify_claims)
            for t in transfers
        ]
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


def _copy(
    transfer: Transfer,
    progress: Callable[[int], Any],
    *,
    checksum: bool,
    verify_claims: Callable[[str], None],
) -> str | None:
    """Copies and verifies one file; returns an error message or None."""
    path = transfer.destination
    try:
        with open_bytes(transfer.source) as source, whole_file(path, "wb") as copy:
            copy.write(b"")  # also creates an empty file
            while block := source.read(_BLOCK_BYTES):
                copy.write(block)
                progress(len(block))
            verify_claims(path)
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
