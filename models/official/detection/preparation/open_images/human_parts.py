"""The group of human parts and mammals: its classes, read from a list, and its training boxes."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tpudet.detection.preparation.sources.box_csv import stream_boxes, write_rows
from tpudet.detection.preparation.sources.input_files import read_image_list, stem
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.inputs import read_input_text


class HumanParts(NamedTuple):
    """Contents of the list of human parts."""

    classes: tuple[ClassEntry, ...]  # in the order of the class list
    elsewhere: tuple[str, ...]  # known labels that are not classes here, such as parents of leaves


def read_human_parts(
    path: str, classes: Sequence[ClassEntry], other_labels: Collection[str]
) -> HumanParts:
    """Reads a list of labels, one per line, and finds their classes.

    Args:
        path: the list, of identifiers or names.
        classes: the classes to split.
        other_labels: other known labels, such as those of parents.

    Raises:
        UserError: the list is missing, has unknown labels (all are named), or names no class.
    """
    lines = [line.strip() for line in read_input_text(path, "--human_parts").splitlines()]
    labels = list(dict.fromkeys(line for line in lines if line))
    ids = class_ids(classes)
    unknown = [label for label in labels if label not in ids and label not in other_labels]
    if unknown:
        raise UserError(
            f"--human_parts {path}: unknown labels, neither in CLASSES nor in --hierarchy nor in "
            f"BBOXES: {', '.join(unknown)}. Correct the list, or pass a --hierarchy with them."
        )
    rows = sorted({ids[label] - 1 for label in labels if label in ids})
    if not rows:
        raise UserError(f"--human_parts {path} names none of the {len(classes)} CLASSES.")
    elsewhere = tuple(label for label in labels if label not in ids)
    return HumanParts(tuple(classes[row] for row in rows), elsewhere)


def write_human_boxes(file: Any, boxes: str, human: HumanParts, image_list: str | None) -> str:
    """Copies the boxes of human parts with unchanged text.

    Args:
        file: the CSV to write, opened for bytes.
        boxes: the box CSV.
        human: the human parts.
        image_list: file of image ids; None takes all images.

    Returns:
        A summary with counts and with the labels that are not classes.

    Raises:
        UserError: there is no such box.
    """
    listed = None if image_list is None else {stem(x) for x in read_image_list(image_list)}
    found: set[str] = set()
    count = write_rows(file, _human_rows(boxes, human.classes, listed, found))
    text = f"{count} boxes of human parts in {len(found)} images."
    if listed is not None:
        text += f" {len(listed - found)} of {len(listed)} images of {image_list} have none."
    if human.elsewhere:
        text += f" Human parts that are not classes: {', '.join(human.elsewhere)}."
    return text


def _human_rows(
    path: str, classes: Sequence[ClassEntry], listed: set[str] | None, found: set[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of these classes in listed images; adds their names to `found`."""
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
        raise UserError(f"BBOXES {path} has no box of a human part in the requested images.")
