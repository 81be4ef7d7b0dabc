"""Compares records of other programs, which have no manifest, with the class list.

A look at the first records of some files takes a fraction of a second and finds what concerns all:
another order of the classes, other names, no boxes. Records further on are checked when they are
trained on.
"""

from collections.abc import Iterator, Sequence

import tensorflow as tf

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import listing
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.records import read_records

_FILES = 8
_RECORDS_PER_FILE = 16
_NO_LABEL = 0
_KEYS = {
    "image/object/class/label": tf.io.VarLenFeature(tf.int64),
    "image/object/class/text": tf.io.VarLenFeature(tf.string),
}


def check_foreign_records(split: Split, classes: Sequence[ClassEntry], name: str) -> list[str]:
    """Checks the first records of a split; does nothing if it has a manifest.

    Args:
        split: as `find_split` returns it.
        classes: rows of classes.csv or of the label map, in the order of the class ids.
        name: of the split, for messages.

    Returns:
        What the user should know before training, one sentence each.

    Raises:
        UserError: a class of the records is not the row of the class list that its id means, or a
            record is damaged.
    """
    if split.manifest is not None:
        return []
    with input_errors_in_words(lambda: split.shards):
        found = set(_first_objects(split.shards))
    mistakes = [text for pair in sorted(found) if (text := _mistake(*pair, classes))]
    if mistakes:
        raise ConfigError(
            f"split `{name}`: the records were written with other classes than classes.csv or the "
            f"label map lists: {listing(mistakes)}. List the classes of the records there, in the "
            "order of their ids"
        )
    if not found:
        return [f"the first records of {listing(split.shards[:_FILES])} have no box"]
    return []


def _first_objects(shards: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yields class id and class name of each object; 0 or an empty text if it has none."""
    for shard in shards[:_FILES]:
        for _, serialized in read_records([shard]).take(_RECORDS_PER_FILE):
            parsed = tf.io.parse_single_example(serialized, _KEYS)
            labels, texts = (parsed[key].values.numpy().tolist() for key in _KEYS)
            texts = [text.decode(errors="replace") for text in texts]
            if len(labels) == len(texts):
                yield from zip(labels, texts, strict=True)
            else:  # the two are parallel in every program seen, or one of them is missing
                yield from ((label, "") for label in labels)
                yield from ((_NO_LABEL, text) for text in texts if not labels)


def _mistake(label: int, text: str, classes: Sequence[ClassEntry]) -> str:
    """Says how an object contradicts the class list; empty if it does not."""
    if label == _NO_LABEL:
        known = any(text == entry.name for entry in classes)
        return "" if known else f"`{text}` is not listed"
    if not 1 <= label <= len(classes):
        return f"class id {label} ({text or 'no name'}) is not within 1..{len(classes)}"
    entry = classes[label - 1]
    if not text or text.strip().casefold() in {part.strip().casefold() for part in entry}:
        return ""
    return f"class id {label} is `{text}` in the records and `{entry.name}` in the list"
