"""Reads the ground truth of a prepared split or of a box CSV into columns."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.data.record_checks import checked_objects
from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.evaluation.open_images.truth_csv import TruthFileError, read_box_rows
from tpudet.detection.inspection.objects import InspectionError, Objects, order_objects
from tpudet.detection.preparation.records.prepared_set import PreparedSet, PreparedSplit
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.storage import open_file
from tpudet.trainkit.input_errors import check_of_pipeline
from tpudet.trainkit.records import read_records, unconverted


class GroundTruthObjects(NamedTuple):
    """Ground truth, and notes for the user on how it was read."""

    objects: Objects
    notes: tuple[str, ...]


def read_split_objects(prepared: PreparedSet, split: str) -> GroundTruthObjects:
    """Reads a split of a prepared set; no image is decoded.

    Image ids are the names of the image files without extension, as in predictions. Copies of an
    image (a balanced train split has some) are taken once.

    Args:
        prepared: the set.
        split: its name.

    Raises:
        InspectionError: there is no such split, its shards are damaged, or two images of one
            name have different objects.
    """
    found = next((one for one in prepared.splits if one.name == split), None)
    if found is None:
        names = ", ".join(one.name for one in prepared.splits)
        raise InspectionError(f"{prepared.directory} has no split {split}; --split is {names}")
    rows: dict[str, int] = {}
    columns = []
    try:
        for name, *image in tqdm(
            _read_records(found), total=found.manifest["images"], desc=split, delay=2, leave=False
        ):
            image_id = os.path.splitext(os.path.basename(name.decode(errors="replace")))[0]
            if image_id not in rows:
                rows[image_id] = len(columns)
                columns.append(image)
            elif not _same(columns[rows[image_id]], image):
                raise InspectionError(
                    f"{found.manifest_path}: two images are called {image_id}, with different "
                    "objects; predictions are joined by that name"
                )
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # that of a quotation of a record
        if said := check_of_pipeline(error):
            raise InspectionError(f"{found.manifest_path}: {said}") from error
        raise InspectionError(
            f"the shards of {found.manifest_path} are damaged: {error}. Write the set again with "
            "--overwrite"
        ) from error
    empty = (np.zeros((0, 4)), np.zeros(0, np.int32), np.zeros(0, bool), np.zeros(0, object))
    boxes, labels, is_crowd, masks = (np.concatenate(c) for c in zip(empty, *columns, strict=True))
    _check_labels(labels, prepared)
    images = np.repeat(np.arange(len(columns)), [len(image[1]) for image in columns])
    objects = order_objects(
        list(rows), images, labels, boxes, np.ones(len(images)), is_crowd, masks
    )
    return GroundTruthObjects(objects, ())


def read_box_csv_objects(
    path: str, classes: Sequence[ClassEntry], classes_from: str
) -> GroundTruthObjects:
    """Reads a box CSV with the columns of Open Images.

    Args:
        path: see `truth_csv.read_box_rows`; a LabelName is an identifier or a name.
        classes: C; boxes of others are left out, and a note counts them.
        classes_from: their source, for messages.

    Raises:
        InspectionError: no label is one of the classes, or the file is not a box CSV.
        OSError: it cannot be opened.
    """
    try:
        with open_file(path, "rb") as file:
            rows = read_box_rows(file.read(), path)
    except TruthFileError as error:
        raise InspectionError(str(error)) from error
    numbers = class_ids(classes)
    names, label = np.unique(rows.labels, return_inverse=True)
    class_of = np.array([numbers.get(str(name), 0) for name in names], np.int32)
    if not class_of.any():
        raise InspectionError(
            f"{path} and {classes_from} have other classes, so they cannot be compared: the boxes "
            f"have the labels {listing(names.tolist())}; the classes are "
            f"{listing([entry.identifier for entry in classes])}"
        )
    own = class_of[label]
    kept = own > 0
    ids = np.unique(rows.all_image_ids)
    images = np.searchsorted(ids, rows.image_ids[kept])
    scores = np.ones(len(images))
    objects = order_objects(
        ids, images, own[kept], rows.boxes[kept], scores, rows.is_group_of[kept]
    )
    notes = list(rows.notes)
    if not kept.all():
        others = listing([str(name) for name in names[class_of == 0]])
        notes.append(
            f"{(~kept).sum():,} boxes of {path} left out: their classes ({others}) are not in "
            f"{classes_from}"
        )
    return GroundTruthObjects(objects, tuple(notes))


def _read_records(split: PreparedSplit) -> Iterator[Any]:
    """Yields (file name, boxes, labels, is_crowd, masks) per image.

    Masks are PNG files, or None where the record has none.
    """

    def parse(record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        key = {"image/filename": tf.io.FixedLenFeature([], tf.string, "")}
        name = tf.io.parse_single_example(serialized, key)["image/filename"]
        example = parse_example(serialized, with_masks=True)
        example = checked_objects(example, record)
        name = tf.where(tf.strings.length(name) > 0, name, example.source_id)
        masks = tf.constant([], tf.string) if example.masks is None else example.masks
        return name, example.boxes_normalized, example.labels, example.is_crowd, masks

    parsed = read_records(split.shards).map(unconverted(parse), num_parallel_calls=2)
    for *columns, masks in parsed.prefetch(256).as_numpy_iterator():
        complete = masks if len(masks) == len(columns[2]) else np.full(len(columns[2]), None)
        yield *columns, complete.astype(object)


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def _check_labels(labels: np.ndarray, prepared: PreparedSet) -> None:
    wrong = labels[(labels < 1) | (labels > len(prepared.classes))]
    if len(wrong):
        raise InspectionError(
            f"the records of {prepared.directory} have class ids up to {wrong.max()}, but its "
            f"classes.csv ends at {len(prepared.classes)}: they do not belong together"
        )
