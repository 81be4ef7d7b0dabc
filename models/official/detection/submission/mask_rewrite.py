"""Submissions of masks from others: with fewer predictions, with other labels, joined."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from tpudet.detection.submission.ancestors import AncestorTable, with_ancestors
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.files import BlockResult
from tpudet.detection.submission.mask_rows import (
    MaskFile,
    MaskPrediction,
    MaskRow,
    open_masks,
    write_masks,
)
from tpudet.detection.submission.open_images_csv import DECIMALS
from tpudet.detection.submission.ranks import FIRST, require_room, score_ranks

Change = Callable[[tuple[MaskPrediction, ...]], Iterable[MaskPrediction]]


def rewrite_masks(
    target: str,
    source: str,
    change: Change,
    *,
    score_decimals: int = DECIMALS,
    force: bool,
    skip_bad: bool,
) -> BlockResult:
    """Writes the images of a submission of masks in their order, with changed predictions.

    Args:
        target: the submission to write.
        source: the submission to read.
        change: from the predictions of an image to those that are written.
        score_decimals: 0 to 9 decimals.
        force: whether an existing target is replaced.
        skip_bad: whether bad rows are left out and counted.

    Raises:
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    with open_masks(source) as opened:
        changed = (
            (row._replace(predictions=tuple(change(row.predictions))), len(row.predictions))
            for row in opened.rows()
        )
        return write_masks(
            target,
            changed,
            [opened],
            score_decimals=score_decimals,
            force=force,
            skip_bad=skip_bad,
        )


def above(
    predictions: tuple[MaskPrediction, ...], min_conf: float, *, keep_first: bool
) -> Iterator[MaskPrediction]:
    """Yields predictions of at least a score, and the first one if it is kept."""
    for number, prediction in enumerate(predictions):
        if prediction.score >= min_conf or (keep_first and not number):
            yield prediction


def best_of_file(source: str, max_num: int, *, keep_first: bool) -> tuple[Change, float] | None:
    """Finds the best `max_num` predictions of a file, of equal scores the earlier.

    Memory holds four bytes per prediction.

    Args:
        source: the submission.
        max_num: at least 0.
        keep_first: whether the first prediction of each image ranks before all others.

    Returns:
        A function that keeps them, if it is called with the images in their order, and the score
        above which all are kept; None if there are no more than that.

    Raises:
        SubmissionError: `keep_first` keeps more than `max_num`.
    """
    with open_masks(source) as opened:
        ranks = [_ranks(row.predictions, keep_first) for row in opened.rows()]
    all_ranks = np.concatenate([np.zeros(0, np.int32), *ranks])
    if len(all_ranks) <= max_num:
        return None
    require_room(int((all_ranks == FIRST).sum()), max_num)
    cut = int(np.partition(all_ranks, len(all_ranks) - 1 - max_num)[len(all_ranks) - 1 - max_num])
    ties_left = max_num - int((all_ranks > cut).sum())

    def keep(predictions: tuple[MaskPrediction, ...]) -> Iterator[MaskPrediction]:
        nonlocal ties_left
        for prediction, rank in zip(predictions, _ranks(predictions, keep_first), strict=True):
            if rank == cut and ties_left:
                ties_left -= 1
                yield prediction
            elif rank > cut:
                yield prediction

    return keep, cut / 1e5


def _ranks(predictions: Sequence[MaskPrediction], keep_first: bool) -> np.ndarray:
    scores = np.array([prediction.score for prediction in predictions])
    is_first = np.arange(len(scores)) == 0
    return score_ranks(scores, is_first if keep_first else None).astype(np.int32)


def add_mask_ancestors(
    predictions: tuple[MaskPrediction, ...], table: AncestorTable, numbers: dict[str, int]
) -> Iterator[MaskPrediction]:
    """Repeats each prediction for its ancestors, as `with_ancestors` does for boxes.

    Args:
        predictions: of one image.
        table: of the hierarchy.
        numbers: the place of each of its labels.
    """
    masks = {mask: place for place, mask in enumerate(dict.fromkeys(p.mask for p in predictions))}
    boxes = np.zeros((len(predictions), 4))  # equal ones stand for equal masks
    boxes[:, 0] = [masks[prediction.mask] for prediction in predictions]
    rows, labels = with_ancestors(
        table,
        np.zeros(len(predictions), np.int64),
        np.array([numbers.get(p.label, -1) for p in predictions], np.int64),
        np.array([p.score for p in predictions]),
        boxes,
    )
    for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
        own = predictions[row]
        yield own._replace(label=table.labels[label]) if label >= 0 else own


def join_masks(
    target: str, sources: Sequence[str], *, min_conf: float, force: bool, skip_bad: bool
) -> tuple[BlockResult, list[int]]:
    """Joins submissions of masks by image id, in the order of ids and in descending order of score.

    Args:
        target: the submission to write.
        sources: paths, at least one.
        min_conf: predictions with a score above it stay.
        force: whether an existing target is replaced.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The totals, and how many of the images each source lacks.

    Raises:
        SubmissionError: two files say different sizes of an image.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """

    def joined(rows: Sequence[MaskRow | None]) -> MaskRow:
        found = [p for row in rows if row for p in row.predictions if p.score > min_conf]
        return first_row(rows)._replace(
            predictions=tuple(sorted(found, key=lambda prediction: -prediction.score))
        )

    with ExitStack() as stack:
        files = [stack.enter_context(open_masks(path)) for path in sources]
        rows = ((joined(own), count_predictions(own)) for own in align_rows(files))
        totals = write_masks(target, rows, files, force=force, skip_bad=skip_bad)
        return totals, count_lacking(files)


def count_lacking(files: Sequence[MaskFile]) -> list[int]:
    """Returns how many of the images of all files each file lacks."""
    all_ids = {name for file in files for name in file.image_ids()}
    return [len(all_ids) - len(file.image_ids()) for file in files]


def align_rows(files: Sequence[MaskFile]) -> Iterator[list[MaskRow | None]]:
    """Yields the rows of each image in all files, images sorted by id; None where a file lacks it.

    Raises:
        SubmissionError: two files say different sizes of an image.
    """
    for image_id in sorted({name for file in files for name in file.image_ids()}):
        rows = [file.row(image_id) for file in files]
        sizes = {
            (row.width, row.height): file
            for row, file in zip(rows, files, strict=True)
            if row and row.predictions  # without masks the size may be unknown
        }
        if len(sizes) > 1:
            shown = ", ".join(f"{w} x {h} in {file.path}" for (w, h), file in sizes.items())
            raise SubmissionError(f"image {image_id} has different sizes: {shown}")
        if any(rows):
            yield rows


def first_row(rows: Sequence[MaskRow | None]) -> MaskRow:
    """Returns the first row with a prediction, whose size is certain, or else the first at all."""
    found = [row for row in rows if row is not None]
    return next((row for row in found if row.predictions), found[0])


def count_predictions(rows: Sequence[MaskRow | None]) -> int:
    """Returns the number of predictions in rows of one image."""
    return sum(len(row.predictions) for row in rows if row)
