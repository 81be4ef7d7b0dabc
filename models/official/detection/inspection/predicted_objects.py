"""Reads a predictions file or a submission into columns."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.inference.predictions_file import (
    ImagePredictions,
    PredictionsError,
    read_predictions,
)
from tpudet.detection.inspection.objects import (
    InspectionError,
    Objects,
    class_permutation,
    order_objects,
)
from tpudet.detection.ops.numpy_masks import Rle, mask_area, mask_box
from tpudet.detection.submission.errors import BadRows, BadRowsError
from tpudet.detection.submission.files import bad_rows, in_file_order, open_submission, scan
from tpudet.detection.submission.fusion.blocks import Block
from tpudet.detection.submission.mask_header import is_mask_submission
from tpudet.detection.submission.mask_rows import decode_masks, open_masks
from tpudet.detection.submission.mask_text import MaskError
from tpudet.detection.submission.unknown_labels import UnknownLabels
from tpudet.detection.submission.writer import run_blocks
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.files.storage import open_file


class PredictedObjects(NamedTuple):
    """Predictions, their classes, and notes for the user on how they were read."""

    objects: Objects
    classes: tuple[ClassEntry, ...]
    notes: tuple[str, ...]


def is_submission(path: str) -> bool:
    """Whether a file is read as a submission, by its name."""
    return path.lower().endswith(".csv")


def read_predicted_objects(
    path: str,
    *,
    min_score: float,
    classes: Sequence[ClassEntry],
    classes_from: str,
    wanted: Sequence[str] | None = None,
    skip_bad: bool = False,
) -> PredictedObjects:
    """Reads predictions of at least some score.

    Args:
        path: a submission (`.csv`), or a predictions file (any other).
        min_score: in 0..1; predictions below it are left out.
        classes: C; empty for those of the predictions file.
        classes_from: the source of `classes`, for messages.
        wanted: ids of the images to read; None for all. Of a submission only their rows are read.
        skip_bad: whether bad rows of a submission are left out; a note counts them.

    Raises:
        InspectionError: it is of another kind, its classes differ, or there is no class list.
        BadRowsError: rows of the submission cannot be used, and `skip_bad` is False.
        OSError: it cannot be opened.
    """
    if is_submission(path):
        if not classes:
            raise InspectionError(
                f"{path} is a submission, which names no classes: --classes FILE does (rows "
                "`identifier,name`), and so does a folder as --groundtruth"
            )
        if is_mask_submission(path):
            return _read_masks(path, min_score, tuple(classes), classes_from, wanted, skip_bad)
        return _read_submission(path, min_score, tuple(classes), classes_from, wanted, skip_bad)
    return _read_predictions_file(path, min_score, tuple(classes), classes_from, wanted)


def _read_predictions_file(
    path: str,
    min_score: float,
    classes: tuple[ClassEntry, ...],
    classes_from: str,
    wanted: Sequence[str] | None,
) -> PredictedObjects:
    try:
        with open_file(path, "rb") as file:
            predictions = read_predictions(file, path)
    except PredictionsError as error:
        raise InspectionError(f"{error}. A submission's name must end in .csv") from error
    own = read_class_list(predictions.class_list_text)
    class_ids = class_permutation(own, classes or own, path, classes_from)
    taken = set(wanted) if wanted is not None else None
    images = [i for i in predictions.images if taken is None or i.image_id in taken]
    chosen = [image.scores >= min_score for image in images]
    empty = (np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))
    columns = [
        (image.labels[rows], image.boxes_normalized[rows], image.scores[rows])
        for image, rows in zip(images, chosen, strict=True)
    ]
    labels, boxes, scores = (np.concatenate(c) for c in zip(empty, *columns, strict=True))
    rows = np.repeat(np.arange(len(images)), [int(rows.sum()) for rows in chosen])
    ids = [image.image_id for image in images]
    is_group = np.zeros(len(rows), bool)
    labels = class_ids[labels.astype(np.int64)]
    objects = order_objects(
        ids, rows, labels, boxes[:, [1, 0, 3, 2]], scores, is_group, _masks(images, chosen)
    )
    unread = predictions.metadata.get("unreadable") or ()
    note = f"{len(unread)} images could not be read when {path} was written, and are not in it"
    return PredictedObjects(objects, classes or own, (note,) if unread else ())


def _masks(images: Sequence[ImagePredictions], chosen: Sequence[np.ndarray]) -> np.ndarray | None:
    if not any(image.masks for image in images):
        return None
    masks = [
        (image.masks or [])[row]
        for image, rows in zip(images, chosen, strict=True)
        for row in np.flatnonzero(rows)
    ]
    column = np.empty(len(masks), object)
    column[:] = masks
    return column


def _read_masks(
    path: str,
    min_score: float,
    classes: tuple[ClassEntry, ...],
    classes_from: str,
    wanted: Sequence[str] | None,
    skip_bad: bool,
) -> PredictedObjects:
    """Reads a submission of masks; boxes are those around the masks."""
    numbers = {entry.identifier: number for number, entry in enumerate(classes, 1)}
    unknown = UnknownLabels()
    found: list[tuple[int, int, tuple[float, ...], float]] = []
    masks: list[Rle] = []
    ids: list[str] = []
    with open_masks(path) as file:
        for image_id in file.image_ids() if wanted is None else wanted:
            row = file.row(image_id)
            if row is None:
                continue
            ids.append(image_id)
            unknown.add_labels([p.label for p in row.predictions if p.label not in numbers])
            places = [
                place
                for place, (label, score, _) in enumerate(row.predictions)
                if score >= min_score and label in numbers
            ]
            try:
                for (label, score, _), mask in decode_masks(row, places):
                    file.unpacked.add(mask)
                    if mask_area(mask):
                        masks.append(mask)
                        found.append((len(ids) - 1, numbers[label], mask_box(mask), score))
            except MaskError as error:
                file.refuse(row.line, str(error))
        bad = file.bad
    if bad.total and not skip_bad:
        raise BadRowsError(bad)
    others = unknown.describe(f"predictions left out, whose labels are not in {classes_from}")
    if others and not found:
        raise InspectionError(
            f"{path} and {classes_from} have other classes, so they cannot be compared; {others}"
        )
    images, labels, boxes, scores = zip(*found, strict=True) if found else ((),) * 4
    column = np.empty(len(masks), object)
    column[:] = masks
    objects = order_objects(
        ids,
        np.array(images, np.int64),
        np.array(labels, np.int32),
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(scores, np.float64),
        np.zeros(len(found), bool),
        column,
    )
    notes = tuple(note.strip() for note in (others, bad.describe()) if note)
    return PredictedObjects(objects, classes, notes)


def _read_submission(
    path: str,
    min_score: float,
    classes: tuple[ClassEntry, ...],
    classes_from: str,
    wanted: Sequence[str] | None,
    skip_bad: bool,
) -> PredictedObjects:
    labels = [entry.identifier.encode() for entry in classes]
    unknown = UnknownLabels()
    num_predictions = num_known = 0
    with open_submission(path) as source:
        if wanted is not None:
            rows = np.isin(source.image_ids, [image_id.encode() for image_id in wanted])
            source = source._replace(rows=source.rows[rows], image_ids=source.image_ids[rows])
        columns, bad, first = [], source.bad, 0

        def read(block: Block) -> tuple[tuple[np.ndarray, ...], int, int, int, BadRows]:
            rows, faults = scan(block, labels)
            unknown.add(block, rows)
            is_known = rows.label_numbers >= 0
            chosen = is_known & (rows.scores >= min_score)
            kept = rows.take(chosen)
            boxes = kept.boxes[:, [1, 0, 3, 2]]
            found = (kept.images(), kept.label_numbers + 1, boxes, kept.scores)
            sizes = (len(block.id_files), len(is_known), int(is_known.sum()))
            return found, *sizes, bad_rows(block, faults)

        for found, size, num_read, known, faulty in run_blocks(
            in_file_order(source), read, os.cpu_count() or 1
        ):
            columns.append((found[0] + first, *found[1:]))
            first += size
            num_predictions, num_known = num_predictions + num_read, num_known + known
            bad = bad.plus(faulty)
        ids = np.char.decode(source.image_ids, "utf-8", "replace")
    if bad.total and not skip_bad:
        raise BadRowsError(bad)
    if num_predictions and not num_known:
        raise InspectionError(
            f"{path} and {classes_from} have other classes, so they cannot be compared; "
            + unknown.describe("predictions have other labels")
        )
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros((0, 4)), np.zeros(0))
    images, numbers, boxes, scores = (np.concatenate(c) for c in zip(empty, *columns, strict=True))
    is_group = np.zeros(len(images), bool)
    others = unknown.describe(f"predictions left out, whose labels are not in {classes_from}")
    notes = tuple(note.strip() for note in (others, bad.describe()) if note)
    objects = order_objects(ids, images, numbers, boxes, scores, is_group)
    return PredictedObjects(objects, classes, notes)
