"""Finds the records of a split, or of several that are read as one."""

from collections.abc import Sequence

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.record_splits import Split, find_split


def find_joined_split(directory: str, splits: str, classes: Sequence[ClassEntry]) -> Split:
    """Finds the shards of one split, or of several joined by `+`, such as `fold_1+fold_2`.

    Raises:
        ConfigError: as `find_split`.
    """
    names = [entry.name for entry in classes]
    found = [
        find_split(directory, split, names, per_class="images_per_class")
        for split in splits.split("+")
    ]
    return Split(
        [shard for split in found for shard in split.shards],
        [count for split in found for count in split.records_per_shard],
        len(classes),
    )
