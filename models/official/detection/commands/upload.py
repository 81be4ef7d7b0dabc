"""Command: copies prepared sets to a bucket or folder, verifies the copies, and can go on.

A folder keeps its name: `converted/part_0` goes to `DESTINATION/part_0`. A copy gets its final name
only when it is whole; in a bucket that renaming is a copy inside the bucket, without a transfer.
"""

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from tqdm import tqdm

from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.command_line import positive_integer, run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.files.storage import TEMPORARY_SUFFIX, remove_if_there, whole_file

_BLOCK_BYTES = 1 << 22
_NAMES_SHOWN = 10

_EXAMPLE = """examples:
  scripts/upload_files_to_gcs.sh output/converted/part_* gs://bucket/converted
  scripts/upload_files_to_gcs.sh --checksum output/converted output/prepared /mnt/backup

A file that is there already counts as the same where it has the source's size and is not older, or
with --checksum the same content; it is not copied again, so a run that was stopped goes on with the
same command. Another file of that name is an error before anything is copied, unless --overwrite.
Every copy's size is verified, with --checksum its content too, which reads it back. Nothing at the
source is deleted without --delete_source, and then only once the content of all copies is verified.
Buckets need the credentials of TensorFlow's file systems (gcloud auth application-default login).
exit status: 0 done, 2 wrong arguments or a copy failed (the others are kept), 130 interrupted
"""


class Transfer(NamedTuple):
    """One file to copy."""

    source: str
    destination: str
    size: int  # bytes
    changed: int  # time of the source's last change, nanoseconds since 1970; 0: not known


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="upload_files_to_gcs.sh",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="files, or folders with all they hold"
    )
    parser.add_argument("destination", metavar="DESTINATION", help="folder, local or gs://bucket")
    parser.add_argument("--checksum", action="store_true", help="compare SHA-256 instead of times")
    parser.add_argument("--overwrite", action="store_true", help="replace files that differ")
    parser.add_argument("--dry_run", action="store_true", help="say what would be copied")
    parser.add_argument(
        "--delete_source",
        action="store_true",
        help="delete the source files after all is verified; implies --checksum",
    )
    parser.add_argument(
        "--threads", type=positive_integer, default=8, metavar="N", help="copies at once (8)"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    transfers = plan_transfers(arguments.sources, arguments.destination)
    checksum = arguments.checksum or arguments.delete_source
    with ThreadPoolExecutor(arguments.threads) as pool:
        compared = pool.map(lambda transfer: is_same(transfer, checksum=checksum), transfers)
        same = list(tqdm(compared, total=len(transfers), unit="file", desc="compare", delay=1))
    differing = [t for t, s in zip(transfers, same, strict=True) if s is False]
    if differing and not arguments.overwrite:
        raise PreparationError(
            f"{_listed([t.destination for t in differing])} of other content or older than the "
            "source. Pass --checksum to compare contents where only the times differ, --overwrite "
            "to replace them, or another DESTINATION. Nothing was copied."
        )
    missing = [t for t, s in zip(transfers, same, strict=True) if not s]
    size = sum(transfer.size for transfer in missing)
    if arguments.dry_run:
        for transfer in missing:
            print(f"{transfer.source} -> {transfer.destination} ({transfer.size} bytes)")
        print(f"Dry run: {len(missing)} of {len(transfers)} file(s), {size} bytes would be copied.")
        return 0
    copy_all(missing, threads=arguments.threads, checksum=checksum)
    how = "size and SHA-256" if checksum else "size"
    there = len(transfers) - len(missing)
    print(f"{len(missing)} file(s), {size} bytes copied, {there} there already; verified by {how}.")
    if arguments.delete_source:
        delete_sources(transfers)
        print(f"{len(transfers)} source file(s) deleted; empty folders stay.")
    return 0


def plan_transfers(sources: Sequence[str], destination: str) -> list[Transfer]:
    """Lists every file below the sources and where it goes, in the order of the names.

    Args:
        sources: files or folders, local or `scheme://`.
        destination: the folder that gets them, each under its own name.

    Raises:
        PreparationError: a source is missing, empty, unfinished or overlaps the destination, or two
            files would get the same name. All such mistakes at once.
    """
    transfers: list[Transfer] = []
    mistakes: list[str] = []
    for source in map(_absolute, sources):
        target = os.path.join(_absolute(destination), os.path.basename(source))
        if not storage.exists(source):
            mistakes.append(f"{source} does not exist.")
        elif _overlap(source, target):
            mistakes.append(f"{source} and {target} are the same or one within the other.")
        else:
            found, unfinished = _files_below(source)
            mistakes += [
                f"{path} is of an unfinished run: end it, or remove it." for path in unfinished
            ]
            if not found:
                mistakes.append(f"{source} holds no file.")
            transfers += [_transfer(path, target + path.removeprefix(source)) for path in found]
    counts = Counter(transfer.destination for transfer in transfers)
    mistakes += [f"{path} would be written {n} times." for path, n in counts.items() if n > 1]
    if mistakes:
        raise PreparationError("\n  ".join(["Nothing was copied.", *mistakes]))
    return transfers


def _absolute(path: str) -> str:
    """Without `.`, `..` and a `/` at the end, so that its last name is its own."""
    return path.rstrip("/") if "://" in path else os.path.abspath(path)


def _transfer(source: str, destination: str) -> Transfer:
    state = storage.stat(source)
    return Transfer(source, destination, state.size, state.modified_ns)


def _files_below(source: str) -> tuple[list[str], list[str]]:
    """Files of a source that is a folder or a file; and what says that it is unfinished."""
    if not storage.is_folder(source):
        return [source], []
    found, unfinished = [], []
    for folder, _, names in storage.walk(source):
        if folder.rstrip("/").endswith(".progress"):
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
    """Whether the destination is a copy of the source; None where there is no such file."""
    try:
        state = storage.stat(transfer.destination)
    except FileNotFoundError:
        return None
    if state.is_folder:  # `ram://` says so of every beginning of a name
        return None
    if state.size != transfer.size:
        return False
    if checksum:
        return file_digest(transfer.source) == file_digest(transfer.destination)
    known = state.modified_ns > 0 and transfer.changed > 0
    return not known or state.modified_ns >= transfer.changed


def copy_all(transfers: Sequence[Transfer], *, threads: int, checksum: bool) -> None:
    """Copies files at once and verifies each copy, with a progress bar in bytes.

    Args:
        transfers: what to copy; what is at the destination is replaced.
        threads: copies at once.
        checksum: read every copy back and compare contents, not only sizes.

    Raises:
        PreparationError: some copies failed; the others are there.
    """
    for folder in sorted({os.path.dirname(transfer.destination) for transfer in transfers}):
        storage.make_folder(folder)
    total = sum(transfer.size for transfer in transfers)
    failures: list[str] = []
    lock, stopped = threading.Lock(), threading.Event()
    with (
        tqdm(total=total, unit="B", unit_scale=True, desc="upload", mininterval=0.5) as bar,
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
            stopped.set()  # a copy that is under way ends at its next block
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        raise PreparationError(
            f"{len(failures)} of {len(transfers)} copies failed, the same command goes on:\n  "
            + "\n  ".join(failures[:_NAMES_SHOWN])
        )


def _copy(transfer: Transfer, progress: Callable[[int], Any], *, checksum: bool) -> str | None:
    """Copies and verifies one file; returns what went wrong, or None."""
    path = transfer.destination
    try:
        with storage.open_file(transfer.source, "rb") as source, whole_file(path, "wb") as copy:
            copy.write(b"")  # an empty file, too, is made only when it is written to
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
        PreparationError: one was changed since it was copied; it and those after it stay.
    """
    for transfer in transfers:
        state = storage.stat(transfer.source)
        if (state.size, state.modified_ns) != (transfer.size, transfer.changed):
            raise PreparationError(f"{transfer.source} was changed meanwhile and is not deleted.")
        remove_if_there(transfer.source)


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMES_SHOWN} more" if len(paths) > _NAMES_SHOWN else ""
    verb = "is" if len(paths) == 1 else "are"
    return f"{', '.join(paths[:_NAMES_SHOWN])}{more} {verb} there already,"


if __name__ == "__main__":
    sys.exit(main())
