"""Files that are made once, with a record beside each of what it was made of.

The record has the file's digest, and the files and options that it was made of. It is removed
before the file is replaced: one without a record is out of date.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.files.json_text import parse_json, write_json_text


def make_recorded(
    target: str,
    sources: Sequence[str],
    write: Callable[..., str],
    *,
    record_suffix: str,
    options: Mapping[str, Any],
    force: bool,
) -> bool:
    """Writes a file unless it exists; False if it does, and was made otherwise. Prints which.

    Args:
        target: the file.
        sources: the files that it is made of.
        write: makes it, given target, sources and `force`; returns a summary.
        record_suffix: of the record's name, after the target's.
        options: JSON values, all that the result depends on besides.
        force: whether an existing file is replaced.

    Raises:
        ClaimError: another process makes it, or has taken it over.
    """
    record = f"{target}{record_suffix}"
    files = {os.path.basename(path): storage.stat(path).size for path in sources}
    if storage.is_file(target) and not force:
        return _is_current(target, record, sources, files, options)
    # The writers claim the result itself, but not its record, which is written when they end.
    with Claim(f"{record}.claim.json", output=target) as claim:
        if force or not storage.is_file(target):
            storage.remove_if_there(record)
        print(write(target, sources, force=force))  # refuses one that was made meanwhile
        claim.verify()
        made = {"sha256": file_digest(target), "files": files, "options": options}
        write_json_text(record, made)
    return True


def _is_current(
    target: str,
    record: str,
    sources: Sequence[str],
    files: dict[str, int],
    options: Mapping[str, Any],
) -> bool:
    """Whether a result is what would be made now; prints it, or why not."""
    newest = max(sources, key=lambda path: storage.stat(path).modified_ns)
    if difference := _difference(target, _read_record(record), files, options):
        print(f"{target} {difference}; -f replaces all", file=sys.stderr)
    elif storage.stat(newest).modified_ns > storage.stat(target).modified_ns:
        print(f"{target}: older than {newest}; -f replaces all", file=sys.stderr)
    else:
        print(f"{target} exists")
        return True
    return False


def _read_record(path: str) -> dict[str, Any] | None:
    """The record of a result; None if there is none, or it is damaged or of an earlier version."""
    try:
        record = parse_json(storage.read_text(path) or "")
    except ValueError:
        return None
    is_whole = isinstance(record, dict) and all(
        isinstance(record.get(name), kind)
        for name, kind in {"sha256": str, "files": dict, "options": dict}.items()
    )
    return record if is_whole else None


def _difference(
    target: str, record: dict[str, Any] | None, files: dict[str, int], options: Mapping[str, Any]
) -> str:
    """How a result was made otherwise than it would be now; empty if it was not."""
    if record is None:
        return "exists without a record of the files and options that it was made of"
    if record["sha256"] != file_digest(target):
        return "was changed after it was made"
    names = sorted({*files, *record["files"]})
    if others := [name for name in names if files.get(name) != record["files"].get(name)]:
        return f"was made before these were added, removed or changed: {', '.join(others)}"
    changed = [name for name in options if options[name] != record["options"].get(name)]
    return f"was made with other options: {', '.join(changed)}" if changed else ""
