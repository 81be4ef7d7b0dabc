"""The group of the human parts and mammals: its classes, from a list, and its training boxes."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.box_csv import stream_boxes, write_boxes
from tpudet.detection.preparation.sources.input_files import read_image_list, read_text, stem
from tpudet.trainkit.class_list import ClassEntry, class_ids


class HumanParts(NamedTuple):
    """What the list of human parts names."""

    classes: tuple[ClassEntry, ...]  # in the order of the class list
    elsewhere: tuple[str, ...]  # known labels that are no class here, such as parents of leaves


def read_human_parts(
    path: str, classes: Sequence[ClassEntry], other_labels: Collection[str]
) -> HumanParts:
    """Reads a list of labels, one a line, and finds their classes.

    Args:
        path: the list; identifiers or names.
        classes: those that are to be split.
        other_labels: what else is known, such as the labels of the parents.

    Raises:
        PreparationError: the list is missing, or has a label that is known nowhere (all such are
            named), or none that is a class.
    """
    lines = [line.strip() for line in read_text(path, "--human_parts").splitlines()]
    labels = list(dict.fromkeys(line for line in lines if line))
    ids = class_ids(classes)
    unknown = [label for label in labels if label not in ids and label not in other_labels]
    if unknown:
        raise PreparationError(
            f"--human_parts {path}: {', '.join(unknown)} unknown: neither in CLASSES nor in "
            "the --hierarchy nor a label in BBOXES. Correct the list, or pass a --hierarchy that "
            "has them."
        )
    rows = sorted({ids[label] - 1 for label in labels if label in ids})
    if not rows:
        raise PreparationError(f"--human_parts {path} names none of the {len(classes)} CLASSES.")
    elsewhere = tuple(label for label in labels if label not in ids)
    return HumanParts(tuple(classes[row] for row in rows), elsewhere)


def write_human_boxes(output: str, boxes: str, human: HumanParts, image_list: str | None) -> str:
    """Copies the boxes of the human parts, their text unchanged.

    Args:
        output: the CSV to write, whole or not at all.
        boxes: the box CSV.
        human: whose boxes.
        image_list: file of the images that may be taken; None takes them all.

    Returns:
        The counts in words, and the labels of the list that are no classes.

    Raises:
        PreparationError: there is no such box.
    """
    listed = None if image_list is None else {stem(x) for x in read_image_list(image_list)}
    found: set[str] = set()
    count = write_boxes(output, _human_rows(boxes, human.classes, listed, found))
    told = f"{count} boxes of human parts in {len(found)} images."
    if listed is not None:
        told += f" {len(listed - found)} of {len(listed)} images of {image_list} have none."
    if human.elsewhere:
        told += f" Human parts that are not among the classes: {', '.join(human.elsewhere)}."
    return told


def _human_rows(
    path: str, classes: Sequence[ClassEntry], listed: set[str] | None, found: set[str]
) -> Iterator[pa.RecordBatch]:
    """Rows of these classes in listed images, whose names go into `found`."""
    wanted = pa.array(list(class_ids(classes)))
    for batch in stream_boxes(path, "BBOXES", required=("ImageID", "LabelName")):
        labels = pc.ascii_trim_whitespace(batch.column("LabelName"))
        batch = batch.filter(pc.is_in(labels, wanted))
        images = pc.ascii_trim_whitespace(batch.column("ImageID")).dictionary_encode()
        names = [stem(name) for name in images.dictionary.to_pylist()]
        taken = [listed is None or name in listed for name in names]
        found.update(name for name, is_taken in zip(names, taken, strict=True) if is_taken)
        yield batch.filter(pa.array(taken, pa.bool_()).take(images.indices))
    if not found:
        raise PreparationError(
            f"BBOXES {path} has no box of the human parts in the images asked for."
        )
