"""Merges the submissions of all models part by part, and joins the merged parts.

`<result>.merge.json`, beside each result, records its digest and the files and options that it was
made of. It is removed before the result is replaced: one without a record is out of date.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.join import join_submissions
from tpudet.detection.submission.merge import (
    MergeOptions,
    merge_submissions,
    read_settings,
    relative_weights,
)
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.digests import file_digest
from tpudet.trainkit.files.json_text import parse_json, write_report

_JOINED_PARTS = ("human_parts", *(f"part_{number}" for number in range(5)))
PARTS = (*_JOINED_PARTS, "segmentation")


def merge_all_submissions(
    folder: str,
    output: str,
    *,
    parts: Sequence[str],
    options: MergeOptions,
    min_conf: float,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> int:
    """Merges `folder/*.csv` into `output/PART.csv`; prints what it does.

    A submission is of a part if its name has PART, v1_PART, … or PART_fold_0, … between hyphens,
    as retinanet-v3_part_0-fold_2-640.csv; what stands for v1 is any word. Models of different parts
    have different classes, so the merged parts of boxes are joined, in `output/joined.csv`, unless
    `parts` are named. Files that exist are skipped.

    Args:
        folder: with submissions.
        output: folder to write in; it is made.
        parts: whose submissions; empty for all of PARTS that there are.
        options: of the merges; weights are one per submission of each part, by rising name.
        min_conf: predictions with a score above it are joined.
        force: whether existing files are replaced.
        threads: at least 1.
        skip_bad: whether bad rows are left out.

    Returns:
        The exit code: 0, or 1 if a file that exists was made of other files or with other options;
        then no parts are joined.

    Raises:
        UserError: there is no submission of a part, or an argument is not usable.
    """
    sources = _sources_by_part(folder, parts)
    recorded = _recorded_options(options, sources)
    writing: dict[str, Any] = {"threads": threads, "skip_bad": skip_bad}
    merge = partial(merge_submissions, options=options, **writing)
    join = partial(join_submissions, min_conf=min_conf, **writing)
    storage.make_folder(output)
    is_current = True
    for part, paths in sources.items():
        print(f"{part}: {', '.join(map(os.path.basename, paths))}")
        target = os.path.join(output, f"{part}.csv")
        is_current &= _make(target, paths, merge, options=recorded, force=force)
    merged = [os.path.join(output, f"{part}.csv") for part in sources if part in _JOINED_PARTS]
    joined = os.path.join(output, "joined.csv")
    if not parts and len(merged) > 1:
        if is_current:
            is_current = _make(joined, merged, join, options={"min_conf": min_conf}, force=force)
        else:
            print(f"{joined}: not joined, because a part is out of date", file=sys.stderr)
    return 0 if is_current else 1


def _recorded_options(
    options: MergeOptions, sources: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The options as they are recorded, checked for all parts before the first is written."""
    mistakes = []
    for part, paths in sources.items():
        try:
            relative_weights(options.weights, len(paths))
        except ValueError as error:
            mistakes.append(f"{part}: {error}")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))
    by_label = read_settings(options._replace(weights=()), 0)
    class_settings = {label: settings._asdict() for label, settings in by_label.items()}
    named = options._asdict() | {"class_settings": class_settings}
    return named.pop("settings")._asdict() | named | {"weights": list(options.weights)}


def _make(
    target: str,
    sources: Sequence[str],
    write: Callable[..., str],
    *,
    options: Mapping[str, Any],
    force: bool,
) -> bool:
    """Writes a file unless it exists; False if it does, and was made otherwise.

    Raises:
        ClaimError: another process makes it, or has taken it over.
    """
    record = _record_path(target)
    files = {os.path.basename(path): storage.stat(path).size for path in sources}
    if storage.is_file(target) and not force:
        return _is_current(target, sources, files, options)
    # The writers claim the result itself, but not its record, which is written when they end.
    with Claim(f"{record}.claim.json", output=target) as claim:
        if force or not storage.is_file(target):
            storage.remove_if_there(record)
        print(write(target, sources, force=force))  # refuses one that was made meanwhile
        claim.verify()
        made = {"sha256": file_digest(target), "files": files, "options": options}
        write_report(record, made)
    return True


def _is_current(
    target: str, sources: Sequence[str], files: dict[str, int], options: Mapping[str, Any]
) -> bool:
    """Whether a result is what would be made now; prints it, or why not."""
    newest = max(sources, key=lambda path: storage.stat(path).modified_ns)
    if difference := _difference(target, _read_record(_record_path(target)), files, options):
        print(f"{target} {difference}; -f replaces all", file=sys.stderr)
    elif storage.stat(newest).modified_ns > storage.stat(target).modified_ns:
        print(f"{target}: older than {newest}; -f replaces all", file=sys.stderr)
    else:
        print(f"{target} exists")
        return True
    return False


def _record_path(target: str) -> str:
    return f"{target}.merge.json"


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


def _sources_by_part(folder: str, parts: Sequence[str]) -> dict[str, list[str]]:
    """The submissions of each part that has any; names the others on the screen."""
    names = [name for name in storage.list_names(folder) if name.endswith(".csv")]
    for part in parts:
        if not re.fullmatch(r"[A-Za-z0-9_]+", part):
            raise SubmissionError(f"PART {part!r} may have only letters, digits and underscores")
    sources = {
        part: [os.path.join(folder, name) for name in names if _is_of_part(name, part)]
        for part in parts or PARTS
    }
    for part in parts:
        if not sources[part]:
            raise SubmissionError(f"no submission of {part} in {folder}")
    used = {path for paths in sources.values() for path in paths}
    if not used:
        raise SubmissionError(f"no submission in {folder} has a part in its name; see --help")
    others = [path for name in names if (path := os.path.join(folder, name)) not in used]
    if others:
        what = "none of these parts" if parts else "no part"
        print("\n".join([f"skipped, {what} in their names:", *others]), file=sys.stderr)
    return {part: paths for part, paths in sources.items() if paths}


def _is_of_part(name: str, part: str) -> bool:
    pattern = rf"([A-Za-z0-9_]+_)?{part}(_fold_[0-9]+)?"
    return any(re.fullmatch(pattern, field) for field in name.removesuffix(".csv").split("-"))
