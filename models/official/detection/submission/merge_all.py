"""Merges the submissions of all models part by part, and joins the merged parts."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.join import join_submissions
from tpudet.detection.submission.merge import MergeOptions, merge_submissions
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import is_file

PARTS = ("human_parts", *(f"part_{number}" for number in range(5)))


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
    as retinanet-v3_part_0-fold_2-640.csv. Models of different parts have different classes, so the
    merged parts are joined, in `output/joined.csv`, unless `parts` are named. Files that exist are
    skipped.

    Args:
        folder: with submissions.
        output: folder to write in; it is made.
        parts: whose submissions; empty for all of PARTS that there are.
        options: of the merges; weights are one per submission of each part.
        min_conf: predictions with a score above it are joined.
        force: whether existing files are replaced.
        threads: at least 1.
        skip_bad: whether bad rows are left out.

    Returns:
        The exit code: 0, or 1 if a file is older than its sources.

    Raises:
        UserError: there is no submission of a part, or an argument is not usable.
    """
    sources = _sources_by_part(folder, parts)
    is_current = True
    writing: dict[str, Any] = {"force": force, "threads": threads, "skip_bad": skip_bad}
    storage.make_folder(output)
    for part, paths in sources.items():
        target = os.path.join(output, f"{part}.csv")
        if _is_to_write(target, force=force):
            print(merge_submissions(target, paths, options, **writing))
        else:
            is_current &= _report_existing(target, paths)
    merged = [os.path.join(output, f"{part}.csv") for part in sources]
    joined = os.path.join(output, "joined.csv")
    if not parts and len(merged) > 1:
        if _is_to_write(joined, force=force):
            print(join_submissions(joined, merged, min_conf=min_conf, **writing))
        else:
            is_current &= _report_existing(joined, merged)
    return 0 if is_current else 1


def _is_to_write(target: str, *, force: bool) -> bool:
    return force or not is_file(target)


def _sources_by_part(folder: str, parts: Sequence[str]) -> dict[str, list[str]]:
    """The submissions of each part that has any; names those of no part on the screen."""
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
    if others and not parts:
        print("\n".join(["skipped, no part in their names:", *others]), file=sys.stderr)
    return {part: paths for part, paths in sources.items() if paths}


def _is_of_part(name: str, part: str) -> bool:
    pattern = rf"(v[0-9]+_)?{part}(_fold_[0-9]+)?"
    return any(re.fullmatch(pattern, field) for field in name.removesuffix(".csv").split("-"))


def _report_existing(target: str, sources: Sequence[str]) -> bool:
    """Says that a file exists; False if it is older than a source."""
    time = storage.stat(target).modified_ns
    for source in sources:
        if storage.stat(source).modified_ns > time:
            print(f"{target}: older than {source}; -f replaces all", file=sys.stderr)
            return False
    print(f"{target} exists")
    return True
