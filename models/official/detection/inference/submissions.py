"""Writes the submission of a predictions file, or of every predictions file in a folder."""

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial

from tqdm import tqdm

from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    read_predictions,
)
from tpudet.detection.submission.ancestors import ancestor_table
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.generate import (
    SUMMARY,
    mask_rows,
    submission_rows,
    wanted_identifiers,
)
from tpudet.detection.submission.hierarchy import (
    Hierarchy,
    default_hierarchy,
    read_hierarchy_file,
)
from tpudet.detection.submission.mask_rows import write_masks
from tpudet.detection.submission.open_images_csv import require_words, write_submission
from tpudet.detection.submission.writer import is_same_file
from tpudet.trainkit.class_list import ClassEntry, read_class_list, read_classes
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file, open_file

_NO_HIERARCHY = "none"
_PART_OF_A_WHOLE = re.compile(r"(_part_[0-9]+_of_[0-9]+|-[0-9]{5}-of-[0-9]{5})\.[a-z]+$")


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
        classes: path of a class list: only its classes are written, with its identifiers.
        hierarchy: path of a class hierarchy, by which ancestors are added; None for the
            challenge's in $DATA if it exists, `none` adds none.
        masks: whether masks are submitted instead of boxes, see `submission.mask_rows`.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        PredictionsError: the predictions file is not usable.
        UserError: another argument is not usable.
        OSError: a file cannot be read or written.
    """
    target = target or _submission_path(source)
    _check_paths(source, target, force=force)
    wanted = read_classes(classes) if classes else None
    tree, remark = _read_hierarchy(hierarchy)
    with open_file(source, "rb") as file:
        predictions = read_predictions(file, source)
    predicted = read_class_list(predictions.class_list_text)
    identifiers = _identifiers(predicted, wanted, classes)
    require_words(filter(None, identifiers), "class identifiers", "give others by --classes")
    unreadable = predictions.metadata.get("unreadable", ())
    images = {os.path.splitext(name)[0]: None for name in unreadable}
    images |= {image.image_id: image for image in predictions.images}
    require_words(images, "image ids", "rename the images", also=" ")
    counts: Counter[str] = Counter()
    table = ancestor_table(tree, list(filter(None, identifiers))) if tree else None
    progress = partial(tqdm, total=len(images), unit=" images", delay=1)
    if masks:
        _require_masks(predictions.images, source)
        rows = mask_rows(images, counts, identifiers=identifiers, ancestors=table)
        counted = ((row, len(row.predictions)) for row in progress(rows))
        num_images = write_masks(target, counted, [], force=force, skip_bad=False).num_images
    else:
        texts = submission_rows(images, counts, identifiers=identifiers, ancestors=table)
        with claimed_file(target, "w", force=force) as file:
            num_images = write_submission(file, progress(texts))
    lines = [f"\n  {counts[key]} {meaning}" for key, meaning in SUMMARY.items() if counts[key]]
    return (
        f"{target}: {num_images} images, {counts['predictions']} predictions"
        + "".join(lines)
        + remark
    )


def _require_masks(images: Sequence[ImagePredictions], source: str) -> None:
    if images and all(image.masks is None for image in images):
        raise SubmissionError(
            f"--masks: {source} has none; tpudet predict writes them for a model with a mask head"
        )


def _check_paths(source: str, target: str, *, force: bool) -> None:
    if not is_file(source):
        raise SubmissionError(f"no file {source}: PREDICTIONS is written by tpudet predict")
    if is_same_file(source, target):
        raise SubmissionError(f"--out {target} is the predictions file itself; name another file")
    if is_file(target) and not force:
        raise SubmissionError(f"{target} exists; -f replaces it, --out names another file")


def _read_hierarchy(path: str | None) -> tuple[Hierarchy | None, str]:
    """The hierarchy to use, if any, and a remark for the summary if it was not named."""
    if path == _NO_HIERARCHY:
        return None, ""
    if path is not None:
        return read_hierarchy_file(path), ""
    path = default_hierarchy()
    if not is_file(path):
        return None, f"\n  no ancestors added: no file {path}, and no --hierarchy"
    return read_hierarchy_file(path), f"\n  ancestors added by {path}"


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

    Args:
        folder: with *.parquet and *.pkl; parts that are not joined yet are skipped.
        classes: see `generate_submission`, as the others.
        hierarchy: path.
        masks: whether masks are submitted.
        force: whether existing submissions are replaced.

    Returns:
        The exit code: 0, or 1 if a submission could not be written or is out of date.

    Raises:
        UserError: there is no predictions file, or an argument is not usable.
    """
    names = [n for n in storage.list_names(folder) if n.endswith((".parquet", ".pkl"))]
    if not names:
        raise SubmissionError(f"no *.parquet or *.pkl in {folder}")
    num_failed = 0
    for source in [os.path.join(folder, name) for name in sorted(names, key=_parquet_first)]:
        target = _submission_path(source)
        parquet = os.path.splitext(source)[0] + ".parquet"
        if _PART_OF_A_WHOLE.search(source):
            print(f"{source}: skipped, a part of a whole", file=sys.stderr)
        elif source != parquet and is_file(parquet):
            print(f"{source}: skipped, {target} is made of {parquet}", file=sys.stderr)
        elif is_file(target) and not force:
            if storage.stat(source).modified_ns > storage.stat(target).modified_ns:
                print(f"{source}: newer than {target}; -f replaces all", file=sys.stderr)
                num_failed += 1
            else:
                print(f"{target} exists")
        else:
            try:
                print(
                    generate_submission(
                        source, classes=classes, hierarchy=hierarchy, masks=masks, force=force
                    )
                )
            except PredictionsError as error:
                print(error, file=sys.stderr)
                num_failed += 1
    if num_failed:
        print(
            f"{num_failed} of {len(names)} files have no submission that is up to date",
            file=sys.stderr,
        )
    return 1 if num_failed else 0


def _submission_path(source: str) -> str:
    return os.path.splitext(source)[0] + ".csv"


def _parquet_first(name: str) -> tuple[bool, str]:
    return name.endswith(".pkl"), name


def _identifiers(
    predicted: Sequence[ClassEntry], wanted: Sequence[ClassEntry] | None, path: str | None
) -> tuple[str, ...]:
    if wanted is None:
        return tuple(entry.identifier for entry in predicted)
    try:
        return wanted_identifiers(predicted, wanted)
    except SubmissionError as error:
        raise SubmissionError(f"--classes {path}: {error}") from error
