"""Predicts the classes of a folder of images, or of records, with an exported classifier."""

import csv
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np
import tensorflow as tf

from tpudet.classification.data.record import parse_example, read_schema
from tpudet.classification.data.splits import find_joined_split
from tpudet.classification.preparation.class_folders import list_split, list_unread
from tpudet.classification.types import LABEL_THRESHOLD
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import exists
from tpudet.trainkit.image_folder import ImageFile, read_ahead
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import require_classes
from tpudet.trainkit.records import read_records, unconverted
from tpudet.trainkit.saved_model import find_saved_model, load_saved_model, read_saved_model

_READERS = 4  # threads that read images ahead
_SEPARATOR = ";"  # of the classes of an image; folders of classes have blanks in their names
EXIT_SOME_UNREADABLE = 1


class Image(NamedTuple):
    """An image to predict."""

    name: str  # of the file, with its class folder, without extension, or the id of the record
    encoded: bytes  # as TensorFlow decodes it
    labels: tuple[int, ...]  # class ids, in ascending order; none if they are not known


class Row(NamedTuple):
    """The prediction for an image."""

    name: str  # as of the image
    probabilities: np.ndarray  # [C]
    labels: tuple[int, ...]  # as of the image


def classify(
    output: str,
    saved_model: str,
    *,
    images: str | None,
    records: str | None,
    split: str,
    batch_size: int,
    with_probabilities: bool,
    force: bool,
) -> int:
    """Writes `id,label` for every image, sorted by id, and prints the accuracy if labels are known.

    Of a model whose images may be of several classes, the label is all of them from a probability
    of 0.5 on, joined by `;`, or empty, and an image is right if all are.

    Args:
        output: CSV file to write.
        saved_model: a SavedModel, or a folder that has some; the newest is taken.
        images: folder of images, or of class folders; None: records.
        records: folder of TFRecords; None: images.
        split: of the records, or several joined by `+`.
        batch_size: images per call.
        with_probabilities: add a column for each class, named by its identifier.
        force: replace an existing file.

    Returns:
        The exit code: 1 if images could not be read, or their probabilities are not finite; they
        are listed.

    Raises:
        UserError: there is no usable model or image, the records have other classes, a record is
            damaged, two images have one id, or the file exists.
    """
    if exists(output) and not force:
        raise UserError(f"{output} exists: --force replaces it")
    saved = read_saved_model(find_saved_model(saved_model), facts=("task", "image_size", "loss"))
    classes = read_class_list(saved.class_list_text)
    faults: list[str] = []
    shards: list[str] = []
    if images is not None:
        found = _images_of_folder(images, classes, faults)
    else:
        shards = find_joined_split(records or "", split, classes).shards
        require_classes(records or "", classes)
        found = _images_of_records(shards)
    signature = load_saved_model(saved).signatures["serving_default"]
    with input_errors_in_words(lambda: shards):
        rows = _finite(_with_ids(list(_predict(found, signature, batch_size))), faults)
    is_multi_label = saved.metadata["loss"] == "sigmoid"
    found_classes = [_predicted(row.probabilities, is_multi_label) for row in rows]
    with claimed_file(output, "w", force=force) as file:
        _write_labels(file, rows, found_classes, classes, with_probabilities=with_probabilities)
    print(f"{output}: {len(rows)} images, {saved.directory} of step {saved.metadata['step']}")
    _print_accuracy(rows, found_classes, is_multi_label=is_multi_label)
    if images is not None and (unread := list_unread(images)):
        print(f"skipped, because their extensions are not those of images: {listing(unread, 3)}")
    for fault in faults:
        print(f"not predicted: {fault}", file=sys.stderr)
    return EXIT_SOME_UNREADABLE if faults else 0


def _write_labels(
    file: TextIO,
    rows: Sequence[Row],
    found_classes: Sequence[Sequence[int]],
    classes: Sequence[ClassEntry],
    *,
    with_probabilities: bool,
) -> None:
    names = [entry.identifier for entry in classes]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["id", "label", *(names if with_probabilities else [])])
    for row, predicted in zip(rows, found_classes, strict=True):
        numbers = [f"{value:.6f}" for value in row.probabilities] if with_probabilities else []
        label = _SEPARATOR.join(names[number - 1] for number in predicted)
        writer.writerow([row.name, label, *numbers])


def _finite(rows: Sequence[Row], faults: list[str]) -> list[Row]:
    """Returns the rows whose probabilities are finite; the others become faults.

    Raises:
        UserError: no row is left.
    """
    finite = [bool(np.isfinite(row.probabilities).all()) for row in rows]
    if not any(finite):
        raise UserError(
            f"the probabilities of all {len(rows)} images are not finite: export another "
            "checkpoint with tpudet export --step"
        )
    faults += [
        f"{row.name}: its probabilities are not finite"
        for row, is_finite in zip(rows, finite, strict=True)
        if not is_finite
    ]
    return list(itertools.compress(rows, finite))


def _predicted(probabilities: np.ndarray, is_multi_label: bool) -> tuple[int, ...]:
    """Returns the ids of the predicted classes, in ascending order."""
    if is_multi_label:
        return tuple((np.flatnonzero(probabilities >= LABEL_THRESHOLD) + 1).tolist())
    return (int(probabilities.argmax()) + 1,)


def _print_accuracy(
    rows: Sequence[Row], predicted: Sequence[tuple[int, ...]], *, is_multi_label: bool
) -> None:
    """Prints the share of images whose classes are right, if labels are known."""
    if is_multi_label:  # an image without a label is then one of no class
        is_scored = [any(row.labels for row in rows)] * len(rows)
    else:
        is_scored = [len(row.labels) == 1 for row in rows]
    right = [row.labels == found for row, found in zip(rows, predicted, strict=True)]
    if any(is_scored):
        share = sum(itertools.compress(right, is_scored)) / sum(is_scored)
        print(f"accuracy {share:.4f} of {sum(is_scored)} images with labels")


def _images_of_folder(
    directory: str, classes: tuple[ClassEntry, ...], faults: list[str]
) -> Iterator[Image]:
    ids = class_ids(classes)
    files = list_split(directory.rstrip("/"))
    labels = {file.filename: (ids[file.label],) if file.label in ids else () for file in files}
    paths = [ImageFile(file.filename, os.path.join(directory, file.filename)) for file in files]
    for image, encoded in read_ahead(paths, workers=_READERS, ahead=4 * _READERS):
        if isinstance(encoded, str):
            faults.append(f"{image.path}: {encoded}")
        else:
            name = os.path.splitext(image.image_id)[0]
            yield Image(name, encoded, labels[image.image_id])


def _images_of_records(shards: Sequence[str]) -> Iterator[Image]:
    schema = read_schema(shards)
    if schema == "ct":
        raise UserError(
            "these records are CT slices, and a SavedModel takes images: predict with tpudet "
            "gen_rsna_sub"
        )
    examples = read_records(shards).map(unconverted(lambda _, text: parse_example(text, schema)))
    for example in examples.prefetch(_READERS).as_numpy_iterator():
        labels = tuple(sorted(set(example.labels.tolist())))
        name = example.image_id.decode()
        name = name if schema == "flowers" else os.path.splitext(name)[0]  # of ImageNet's a file's
        yield Image(name, example.encoded, labels)


def _predict(images: Iterable[Image], signature: Any, batch_size: int) -> Iterator[Row]:
    images = iter(images)
    while batch := list(itertools.islice(images, batch_size)):
        encoded = tf.constant([image.encoded for image in batch])
        probabilities = signature(input=encoded)["probabilities"].numpy()
        for image, row in zip(batch, probabilities, strict=True):
            yield Row(image.name, row, image.labels)


def _with_ids(rows: list[Row]) -> list[Row]:
    """Names each row by its id and sorts the rows by it.

    Raises:
        UserError: there is no row, or two images have one id.
    """
    if not rows:
        raise UserError("no image could be predicted")
    whole = [row.name for row in rows]
    stems = [os.path.basename(name) for name in whole]
    # Two classes may each have a `1.jpg`.
    ids = stems if len(set(stems)) == len(stems) else whole
    found = sorted(
        (row._replace(name=i) for row, i in zip(rows, ids, strict=True)), key=lambda row: row.name
    )
    twice = [one.name for one, other in itertools.pairwise(found) if one.name == other.name]
    if twice:
        raise UserError(
            f"{len(twice)} images have the id of another one, for example {twice[0]}: ids are "
            "names of files without extension"
        )
    return found
