"""Finds the TFRecord files of a split and checks that they are finished and of these classes."""

from collections.abc import Sequence
from typing import NamedTuple

from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.record_manifest import PerClass, check_manifest
from tpudet.trainkit.records import count_records, find_shards


class Split(NamedTuple):
    """The TFRecord files of one split."""

    shards: list[str]
    records_per_shard: list[int]
    num_classes: int  # that its labels may name


def find_split(
    directory: str,
    split: str,
    class_names: Sequence[str],
    *,
    per_class: PerClass = "boxes_per_class",
) -> Split:
    """Finds the shards of a split.

    Where the split has a manifest, its files and its classes must be those of the manifest; records
    of other programs have none.

    Args:
        directory: of the data set; the part is the last component of its path.
        split: such as train.
        class_names: in the order of the class ids.
        per_class: what a manifest counts.

    Raises:
        ConfigError: the split is missing, unfinished or damaged, or was written with other classes
            or in another order.
    """
    directory = directory.rstrip("/")
    try:
        checked = check_manifest(directory, split, per_class=per_class)
        if checked is None:
            shards = find_shards(f"{directory}/{split}_{directory.rpartition('/')[2]}")
            return Split(shards, count_records(shards), len(class_names))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"split `{split}` of {directory}: {error}") from error
    difference = _first_difference(checked.class_names, class_names)
    if difference:
        raise ConfigError(
            f"split `{split}` of {directory} was written with other classes: {difference}. Restore "
            "the classes.csv of the conversion, or convert the split again"
        )
    return Split(checked.shards, checked.records_per_shard, len(class_names))


def _first_difference(written: Sequence[str], present: Sequence[str]) -> str:
    """Describes the first class id that means another class; empty if the lists are equal."""
    for number, (then, now) in enumerate(zip(written, present, strict=False), start=1):
        if then != now:
            return f"class {number} was {then}, in classes.csv it is {now}"
    if len(written) == len(present):
        return ""
    return f"there were {len(written)}, classes.csv has {len(present)}"
