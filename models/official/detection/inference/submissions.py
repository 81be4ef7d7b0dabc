"""Writes the submission of a predictions file, or of every predictions file in a folder."""

import hashlib
import heapq
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from tqdm import tqdm

from tpudet.detection.inference.join_shards import describe_shard
from tpudet.detection.inference.predictions import ImagePredictions, StoredPredictions
from tpudet.detection.inference.predictions_file import open_predictions
from tpudet.detection.submission.ancestors import AncestorTable, ancestor_table
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.generate import (
    SUMMARY,
    find_wanted,
    mask_rows,
    submission_rows,
)
from tpudet.detection.submission.hierarchy import (
    Hierarchy,
    default_hierarchy,
    read_hierarchy_file,
)
from tpudet.detection.submission.mask_rows import write_masks
from tpudet.detection.submission.open_images_csv import require_words, write_submission
from tpudet.detection.submission.recorded_files import make_recorded
from tpudet.detection.submission.writer import is_same_file
from tpudet.trainkit.class_list import ClassEntry, read_class_list, read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file, open_file

_NO_HIERARCHY = "none"
_Images = Iterator[tuple[str, ImagePredictions | None]]  # with their ids; None: not readable
_PART_OF_A_WHOLE = re.compile(r"(_part_[0-9]+_of_[0-9]+|-[0-9]{5}-of-[0-9]{5})\.[a-z]+$")


class _ShardError(SubmissionError):
    """The predictions file is one of several that are to be joined first."""


def generate_submission(
    source: str,
    *,
    target: str | None = None,
    classes: str | None = None,
    hierarchy: str | None = None,
    masks: bool = False,
    force: bool = False,
) -> str:
    """Writes the submission CSV of a predictions file, whole or not at all.

    Args:
        source: the predictions file.
        target: the submission to write; None for the name of the source, ending in .csv.
        classes: path of a class list: only predictions of its classes are written, with its
            identifiers.
        hierarchy: path of a class hierarchy, by which ancestors are added; None for the
            challenge's in $DATA if it exists, `none` adds none.
        masks: whether masks are submitted instead of boxes, see `submission.mask_rows`.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        PredictionsError: the predictions file is not usable.
        SubmissionError: it has a shard of the images only.
        UserError: another argument is not usable.
        OSError: a file cannot be read or written.
    """
    target = target or _submission_path(source)
    _check_paths(source, target, force=force)
    return _write(source, target, _read_lists(classes, hierarchy), masks=masks, force=force)


class _Lists(NamedTuple):
    """The lists that decide the labels of a submission."""

    classes: str | None  # path of the class list
    wanted: tuple[ClassEntry, ...] | None  # its rows; None for all predicted classes
    hierarchy: Hierarchy | None  # None adds no ancestors
    hierarchy_path: str | None  # the one that was asked for; None for the challenge's

    def recorded(self) -> dict[str, str | None]:
        """The contents of the lists, as they are compared with those of an earlier run."""
        tree = None if self.hierarchy is None else self.hierarchy.parents
        return {"classes": _digest(self.wanted), "hierarchy": _digest(tree)}


def _digest(content: object) -> str | None:
    return None if content is None else hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _read_lists(classes: str | None, hierarchy: str | None) -> _Lists:
    wanted = read_classes(classes) if classes else None
    return _Lists(classes, wanted, _read_hierarchy(hierarchy), hierarchy)


def _write(source: str, target: str, lists: _Lists, *, masks: bool, force: bool) -> str:
    """Writes the submission of a predictions file; returns the summary."""
    counts: Counter[str] = Counter()
    with open_file(source, "rb") as opened:
        stored = open_predictions(opened, source)
        if shard := describe_shard(stored.metadata):
            raise _ShardError(
                f"{source} has only {shard} of the images, and a submission names every image: "
                "join the shards by tpudet join_predicted_parts first"
            )
        identifiers, renamed = _identifiers(read_class_list(stored.class_list_text), lists)
        table = _ancestors(identifiers, lists.hierarchy)
        remark = _hierarchy_remark(list(filter(None, identifiers)), lists)
        total, images = _by_rising_id(stored)
        progress = partial(tqdm, total=total, unit=" images", delay=1)
        if masks:
            images = _with_masks(images, source)
            rows = mask_rows(images, counts, identifiers=identifiers, ancestors=table)
            counted = ((row, len(row.predictions)) for row in progress(rows))
            write_masks(target, counted, [], force=force, skip_bad=False)
        else:
            texts = submission_rows(images, counts, identifiers=identifiers, ancestors=table)
            with claimed_file(target, "w", force=force) as file:
                write_submission(file, progress(texts))
    lines = [f"\n  {counts[key]} {meaning}" for key, meaning in SUMMARY.items() if counts[key]]
    return (
        f"{target}: {total} images, {counts['predictions']} predictions"
        + "".join(lines)
        + "".join(f"\n  {text}" for text in (renamed, remark) if text)
    )


def _by_rising_id(stored: StoredPredictions) -> tuple[int, _Images]:
    """The number of images, and the images with their ids.

    One block is in memory where ids rise from image to image, as tpudet predict writes them;
    otherwise all are.
    """
    ids = stored.image_ids()
    names = {os.path.splitext(name)[0] for name in stored.metadata.get("unreadable", ())}
    unreadable = sorted(names.difference(ids))
    require_words([*ids, *unreadable], "image ids", "rename the images", also=" ")
    found: Iterable[tuple[str, ImagePredictions | None]]
    found = ((image.image_id, image) for block in stored.blocks() for image in block)
    if ids != sorted(ids):
        found = sorted(found, key=itemgetter(0))
    missing = ((image_id, None) for image_id in unreadable)
    return len(ids) + len(unreadable), heapq.merge(found, missing, key=itemgetter(0))


def _with_masks(images: _Images, source: str) -> _Images:
    for image_id, image in images:
        if image is not None and image.masks is None:
            raise SubmissionError(
                f"--masks: {source} has none; tpudet predict writes them for a model with a mask "
                "head"
            )
        yield image_id, image


def _check_paths(source: str, target: str, *, force: bool) -> None:
    if not is_file(source):
        raise SubmissionError(f"no file {source}: PREDICTIONS is written by tpudet predict")
    if is_same_file(source, target):
        raise SubmissionError(
            f"{source} would be replaced by its own submission: PREDICTIONS is a file of tpudet "
            "predict (.parquet or .pkl), and --out names another file"
        )
    if is_file(target) and not force:
        raise SubmissionError(f"{target} exists; -f replaces it, --out names another file")


def _read_hierarchy(path: str | None) -> Hierarchy | None:
    """The hierarchy to use, if any."""
    if path is None and is_file(default_hierarchy()):
        path = default_hierarchy()
    return None if path in (None, _NO_HIERARCHY) else read_hierarchy_file(path)


def _hierarchy_remark(identifiers: Sequence[str], lists: _Lists) -> str:
    """A remark for the summary on a hierarchy that was not named, or lacks labels; or empty.

    Raises:
        SubmissionError: a hierarchy was named that has none of the labels.
    """
    is_named = lists.hierarchy_path is not None
    path = lists.hierarchy_path if is_named else default_hierarchy()
    if lists.hierarchy is None:
        return "" if is_named else f"no ancestors added: no file {path}, and no --hierarchy"
    lacking = [label for label in identifiers if label not in lists.hierarchy.parents]
    if len(lacking) < len(identifiers):
        remarks = [] if is_named else [f"ancestors added by {path}"]
        if lacking:
            few = f"{len(lacking)} of {len(identifiers)} classes have labels that {path} lacks"
            remarks.append(f"{few}: {listing(lacking)}")
        return "\n  ".join(remarks)
    reason = f"{path} has none of the predicted labels: {listing(lacking)}"
    if is_named:
        raise SubmissionError(
            f"--hierarchy {reason}; name the hierarchy of these labels, or --hierarchy none"
        )
    return f"no ancestors added: {reason}"


def generate_all_submissions(
    folder: str,
    *,
    classes: str | None = None,
    hierarchy: str | None = None,
    masks: bool = False,
    force: bool = False,
) -> int:
    """Writes the submission of every predictions file of a folder beside it; prints what it does.

    Submissions that exist are skipped, so a stopped run resumes with the same call.
    `<submission>.gen.json` beside each records what it was made of (`submission.recorded_files`).

    Args:
        folder: with *.parquet and *.pkl; parts that are not joined yet are skipped.
        classes: see `generate_submission`, as the others.
        hierarchy: path.
        masks: whether masks are submitted.
        force: whether existing submissions are replaced.

    Returns:
        The exit code: 0, or 1 if a submission could not be written, is out of date or was made with
        other options.

    Raises:
        UserError: there is no predictions file, or an argument is not usable.
    """
    names = [n for n in storage.list_names(folder) if n.endswith((".parquet", ".pkl"))]
    if not names:
        raise SubmissionError(f"no *.parquet or *.pkl in {folder}")
    lists = _read_lists(classes, hierarchy)
    options = {**lists.recorded(), "masks": masks}

    def write(target: str, sources: Sequence[str], *, force: bool) -> str:
        return _write(sources[0], target, lists, masks=masks, force=force)

    make = partial(make_recorded, record_suffix=".gen.json", options=options, force=force)
    num_failed = 0
    for source in [os.path.join(folder, name) for name in sorted(names, key=_parquet_first)]:
        target = _submission_path(source)
        parquet = os.path.splitext(source)[0] + ".parquet"
        if _PART_OF_A_WHOLE.search(source):
            _print_skipped(source)
        elif source != parquet and is_file(parquet):
            print(f"{source}: skipped, {target} is made of {parquet}", file=sys.stderr)
        else:
            try:
                num_failed += not make(target, [source], write)
            except _ShardError:
                _print_skipped(source)
            except UserError as error:
                told = str(error)
                print(told if source in told else f"{source}: {told}", file=sys.stderr)
                num_failed += 1
    if num_failed:
        print(
            f"{num_failed} of {len(names)} files have no submission that is up to date",
            file=sys.stderr,
        )
    return 1 if num_failed else 0


def _print_skipped(source: str) -> None:
    print(f"{source}: skipped, a part of a whole", file=sys.stderr)


def _submission_path(source: str) -> str:
    return os.path.splitext(source)[0] + ".csv"


def _parquet_first(name: str) -> tuple[bool, str]:
    return name.endswith(".pkl"), name


def _identifiers(predicted: Sequence[ClassEntry], lists: _Lists) -> tuple[tuple[str, ...], str]:
    """The label of each predicted class, empty for one to leave out; and a remark, or empty."""
    identifiers, remark = tuple(entry.identifier for entry in predicted), ""
    if lists.wanted is not None:
        try:
            identifiers, remark = find_wanted(predicted, lists.wanted)
        except SubmissionError as error:
            raise SubmissionError(f"--classes {lists.classes}: {error}") from error
    require_words(filter(None, identifiers), "class identifiers", "give others by --classes")
    return identifiers, f"--classes {lists.classes}: {remark}" if remark else ""


def _ancestors(identifiers: Sequence[str], hierarchy: Hierarchy | None) -> AncestorTable | None:
    if hierarchy is None:
        return None
    table = ancestor_table(hierarchy, list(filter(None, identifiers)))
    require_words(table.labels, "labels of the hierarchy", "correct it, or --hierarchy none")
    return table
