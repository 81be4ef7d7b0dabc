"""Copies prepared sets to a bucket or another folder and verifies the copies; resumable.

A folder keeps its name: `converted/part_0` is copied to `DESTINATION/part_0`. A set at the
destination is that of its source, or marked as unfinished: see `uploaded_sets`.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from tqdm import tqdm

from tpudet.detection.preparation.records.transfers import (
    Transfer,
    copy_all,
    delete_sources,
    is_same,
)
from tpudet.detection.preparation.records.uploaded_sets import (
    UploadedSet,
    begin_sets,
    end_sets,
    find_others,
    find_owner,
    find_sets,
    may_be_of_others,
    require_manifests,
    require_unchanged,
)
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.storage import TEMPORARY_SUFFIX
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, PROGRESS_SUFFIX


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
        ClaimError: another process writes to one of these folders.
        UserError: as `plan_transfers`, `copy_all` and `delete_sources`, or an existing file differs
            and `overwrite` is false; nothing is copied then.
    """
    transfers = plan_transfers(sources, destination)
    sets = find_sets(transfers)
    require_manifests(transfers, sets)
    checksum = checksum or delete_source
    compare = partial(
        _compare, transfers, sets, threads=threads, checksum=checksum, overwrite=overwrite
    )
    if dry_run:
        return _print_missing(compare().missing, len(transfers))
    with ExitStack() as stack:
        claims = [stack.enter_context(claim) for claim in _claims(sources, destination, sets)]

        def verify_claims(path: str) -> None:
            for claim in claims:
                if path.startswith(f"{os.path.dirname(claim.path)}/"):
                    claim.verify()

        found = compare()
        _copy_sets(found, threads=threads, checksum=checksum, verify_claims=verify_claims)
        end_sets(sets)
        if delete_source:
            delete_sources(transfers)
    num_copied, size = len(found.missing), sum(transfer.size for transfer in found.missing)
    summary = (
        f"{num_copied} file(s), {size} bytes copied, {len(transfers) - num_copied} already "
        f"existed; verified by {'size and SHA-256' if checksum else 'size'}."
    )
    if delete_source:
        summary += f"\n{len(transfers)} source file(s) deleted; empty folders are kept."
    return summary


def _print_missing(missing: Sequence[Transfer], num_files: int) -> str:
    """Prints what would be copied; returns a summary."""
    for transfer in missing:
        print(f"{transfer.source} -> {transfer.destination} ({transfer.size} bytes)")
    size = sum(transfer.size for transfer in missing)
    return f"Dry run: {len(missing)} of {num_files} file(s), {size} bytes would be copied."


def _copy_sets(
    found: "_Comparison", *, threads: int, checksum: bool, verify_claims: Callable[[str], None]
) -> None:
    """Copies what is missing, manifests last, while readers refuse the sets concerned."""
    begin_sets(found.begun, found.unknown, found.outdated, verify_claims=verify_claims)
    copy = partial(copy_all, threads=threads, checksum=checksum, verify_claims=verify_claims)
    manifests = [t for t in found.missing if t.destination.endswith(MANIFEST_SUFFIX)]
    copy([transfer for transfer in found.missing if transfer not in manifests])
    require_unchanged(found.begun)
    if manifests:
        copy(manifests)


def _claims(sources: Sequence[str], destination: str, sets: Sequence[UploadedSet]) -> list[Claim]:
    """The claims on the folders to write in, and on sets, which other commands write too."""
    folders = {
        _target(source, destination) if storage.is_folder(source) else _absolute(destination): None
        for source in map(_absolute, sources)
    }
    outputs = {f"{folder}/upload.claim.json": folder for folder in folders}
    outputs |= {f"{one.prefix}.claim.json": one.prefix for one in sets}
    return [Claim(path, output=output) for path, output in outputs.items()]


class _Comparison(NamedTuple):
    """The files to copy, told by those at the destination."""

    missing: list[Transfer]  # to copy; also those that differ
    begun: list[UploadedSet]  # of which something is missing
    unknown: list[UploadedSet]  # of these, those of which other versions may be there
    outdated: list[str]  # paths of files of other versions


def _compare(
    transfers: Sequence[Transfer],
    sets: Sequence[UploadedSet],
    *,
    threads: int,
    checksum: bool,
    overwrite: bool,
) -> _Comparison:
    """Compares sources and copies; contents too where sizes cannot tell versions of a set apart."""
    unknown = [one for one in sets if not one.is_known()]
    of_others = {transfer for transfer in transfers if may_be_of_others(transfer, sets, unknown)}
    with ThreadPoolExecutor(threads) as pool:
        compared = pool.map(lambda t: is_same(t, checksum=checksum or t in of_others), transfers)
        bar = tqdm(compared, total=len(transfers), unit="file", desc="compare", delay=1)
        same = dict(zip(transfers, bar, strict=True))
    others = find_others(unknown, transfers)
    differing = [transfer for transfer in transfers if same[transfer] is False]
    if (found := [*(t.destination for t in differing), *others]) and not overwrite:
        verb = "exists" if len(found) == 1 else "exist"
        raise UserError(
            f"{listing(found)} already {verb} with other content or older than the source. "
            "Pass --checksum to compare contents if only the times differ, --overwrite to replace "
            "them, or another DESTINATION. Nothing was copied."
        )
    renewed = {one.manifest for one in unknown}
    missing = [t for t in transfers if not same[t] or t in renewed]
    owners = [find_owner(transfer, sets) for transfer in missing]
    outdated = [t.destination for t in differing if t in of_others]
    outdated += [path for path in others if not path.endswith(PROGRESS_SUFFIX)]
    return _Comparison(missing, [one for one in sets if one in owners], unknown, outdated)


def plan_transfers(sources: Sequence[str], destination: str) -> list[Transfer]:
    """Lists every file below the sources with its destination, sorted by name.

    Args:
        sources: files or folders, local or `scheme://`.
        destination: folder for the copies, each under its own name.

    Raises:
        UserError: a source is missing, empty, unfinished or overlaps the destination, two files
            would get the same name, or a set would be copied into a set. All mistakes are listed.
    """
    transfers: list[Transfer] = []
    mistakes: list[str] = []
    if any(storage.is_folder(one) and _is_set(one) for one in sources) and _is_set(destination):
        mistakes.append(
            f"{destination} is itself a prepared set, and the last argument is the folder to copy "
            "sets to: was it left out?"
        )
    for source in map(_absolute, sources):
        target = _target(source, destination)
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


def _is_set(folder: str) -> bool:
    """Whether a folder, which may not exist yet, holds the manifest of a split."""
    return any(name.endswith(MANIFEST_SUFFIX) for name in storage.list_names(folder))


def _target(source: str, destination: str) -> str:
    """Where a source is copied to."""
    return os.path.join(_absolute(destination), os.path.basename(source))


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
