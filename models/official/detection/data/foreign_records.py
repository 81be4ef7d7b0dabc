"""Compares records of other programs, which have no manifest, with the class list.

A look at the first records of some files takes a fraction of a second and finds what concerns all:
another order of the classes, other names, no boxes, boxes in pixels. Records further on are checked
when they are trained on.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.ops.numpy_boxes import FAR_OUTSIDE
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.records import read_records
from tpudet.trainkit.types import Tensor

_FILES = 8
_RECORDS_PER_FILE = 16
_NO_LABEL = 0
_LABEL, _TEXT = "image/object/class/label", "image/object/class/text"
_CORNERS = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_CROWDS = ("image/object/is_crowd", "image/object/group_of")
_KEYS = {
    **dict.fromkeys((_LABEL, *_CROWDS), tf.io.VarLenFeature(tf.int64)),
    **dict.fromkeys(_CORNERS, tf.io.VarLenFeature(tf.float32)),
    _TEXT: tf.io.VarLenFeature(tf.string),
}


class _Objects(NamedTuple):
    """The objects of one record."""

    place: str  # of the record
    classes: set[tuple[int, str]]  # class id and name; 0 or an empty text if it has none
    corners: np.ndarray  # [n, 4] ymin xmin ymax xmax
    crowds: int  # how many are crowd regions


def check_foreign_records(split: Split, classes: Sequence[ClassEntry], name: str) -> list[str]:
    """Checks the first records of a split; does nothing if it has a manifest.

    Args:
        split: as `find_split` returns it.
        classes: rows of classes.csv or of the label map, in the order of the class ids.
        name: of the split, for messages.

    Returns:
        What the user should know before training, one sentence each.

    Raises:
        UserError: a class of the records is not the row of the class list that its id means, boxes
            are in pixels or none can be used, or a record is damaged.
    """
    if split.manifest is not None:
        return []
    with input_errors_in_words(lambda: split.shards):
        records = list(_first_records(split.shards))
    found = {pair for record in records for pair in record.classes}
    mistakes = [text for pair in sorted(found) if (text := _mistake(*pair, classes))]
    if mistakes:
        raise ConfigError(
            f"split `{name}`: the records were written with other classes than classes.csv or the "
            f"label map lists: {listing(mistakes)}. List the classes of the records there, in the "
            "order of their ids"
        )
    corners = np.concatenate(
        [np.empty((0, 4), np.float32), *(record.corners for record in records)]
    )
    if not len(corners):
        return [f"the first records of {listing(split.shards[:_FILES])} have no box"]
    lacks = _check_corners(corners, f"split `{name}`")
    if sum(record.crowds for record in records) == len(corners):
        lacks.append(
            f"all {len(corners)} objects of the first records are crowd regions, from which "
            "nothing is learned"
        )
    return lacks


def _first_records(shards: Sequence[str]) -> Iterator[_Objects]:
    """Yields the objects of the first records of the first files."""
    for shard in shards[:_FILES]:
        for number, serialized in read_records([shard]).take(_RECORDS_PER_FILE):
            place = f"record {int(number)} of {os.path.basename(shard)}"
            parsed = tf.io.parse_single_example(serialized, _KEYS)
            yield _objects({key: parsed[key].values for key in _KEYS}, place)


def _objects(columns: dict[str, Tensor], place: str) -> _Objects:
    sizes = {key: int(tf.size(column)) for key, column in columns.items()}
    # The two are parallel in every program seen, or one of them is missing.
    num_classes = sizes[_LABEL] or sizes[_TEXT]
    counts = {key: sizes[key] for key in _CORNERS} | {"classes": num_classes}
    if len(set(counts.values())) > 1:  # before anything takes more memory than in the record
        shown = ", ".join(f"{os.path.basename(key)} {count}" for key, count in counts.items())
        raise UserError(
            f"{place} does not have as many classes as corners of boxes: {shown}. Write the set "
            "again with one of each per object."
        )
    labels, texts = columns[_LABEL].numpy(), columns[_TEXT].numpy()
    if len(labels) == len(texts):
        classes = {
            (int(k), text.decode(errors="replace")) for k, text in zip(labels, texts, strict=True)
        }
    elif len(labels):
        classes = {(label, "") for label in np.unique(labels).tolist()}
    else:
        classes = {(_NO_LABEL, text.decode(errors="replace")) for text in texts}
    corners = np.stack([columns[key].numpy() for key in _CORNERS], axis=1)
    return _Objects(
        place, classes, corners, max(int(columns[key].numpy().sum()) for key in _CROWDS)
    )


def _check_corners(corners: np.ndarray, where: str) -> list[str]:
    """Says which boxes training leaves out; refuses pixels, and boxes of which none can be used."""
    beyond = (corners[:, 2:] > FAR_OUTSIDE).any(axis=1)
    if beyond.mean() > 0.5:
        raise UserError(
            f"{where}: the records are in pixels: {beyond.sum()} of the first {len(corners)} boxes "
            f"end beyond {FAR_OUTSIDE:g}, where fractions of the image, 0..1, are expected. Write "
            "them again, divided by the sizes of the images."
        )
    inside = np.clip(corners, 0, 1)
    is_box = (inside[:, 2:] > inside[:, :2]).all(axis=1) & np.isfinite(corners).all(axis=1)
    if is_box.all():
        return []
    case = " ".join(f"{number:g}" for number in corners[~is_box][0])
    said = (
        f"{(~is_box).sum()} of the first {len(corners)} boxes of the records have no area within "
        f"the image or are no numbers, such as ymin xmin ymax xmax {case}"
    )
    if not is_box.any():
        raise UserError(f"{where}: {said}. Write them again.")
    return [f"{said}: they are left out"]


def _mistake(label: int, text: str, classes: Sequence[ClassEntry]) -> str:
    """Says how an object contradicts the class list; empty if it does not."""
    if label == _NO_LABEL and text:
        known = any(text == entry.name for entry in classes)
        return "" if known else f"`{text}` is not listed"
    if not 1 <= label <= len(classes):
        return f"class id {label} ({text or 'no name'}) is not within 1..{len(classes)}"
    entry = classes[label - 1]
    if not text or text.strip().casefold() in {part.strip().casefold() for part in entry}:
        return ""
    return f"class id {label} is `{text}` in the records and `{entry.name}` in the list"
