"""Merges the submissions of all models part by part, and joins the merged parts.

`<result>.merge.json`, beside each result, records what it was made of (`recorded_files`).
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.join import join_submissions
from tpudet.detection.submission.merge import (
    MergeOptions,
    merge_submissions,
    read_fusion_settings,
    relative_weights,
)
from tpudet.detection.submission.recorded_files import make_recorded
from tpudet.trainkit.files import storage

_JOINED_PARTS = ("human_parts", *(f"part_{number}" for number in range(5)))
PARTS = (*_JOINED_PARTS, "segmentation")
_make = partial(make_recorded, record_suffix=".merge.json")


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
        options: of the merges; weights are one per submission of each part, sorted by name.
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
    by_label = read_fusion_settings(options._replace(weights=()), 0)
    class_settings = {label: settings._asdict() for label, settings in by_label.items()}
    named = options._asdict() | {"class_settings": class_settings}
    return named.pop("settings")._asdict() | named | {"weights": list(options.weights)}


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
