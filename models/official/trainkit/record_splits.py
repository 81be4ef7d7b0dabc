"""Finds the TFRecord files of a split and checks that they are finished and of these classes."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import PerClass, check_manifest
from tpudet.trainkit.records import count_records, find_shards

_ALIASES = {"val": ("val", "validation")}
_ENDINGS = (".tfrec", ".tfrecord")
_COUNT_IN_NAME = re.compile(r"-(\d+)\.tfrec$")


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
    """Finds the shards of a split: those of this toolkit, else those of another program.

    Other programs' are, with `validation` also for val, `<split>-00000-of-01024` with or without
    .tfrecord; all .tfrec and .tfrecord files of a folder `<split>`; or `<split>*.tfrec`. A name
    that ends in `-<number>.tfrec`, as Kaggle's do, tells the number of its records.

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
            shards = _find_foreign(directory, split)
            shards = shards or find_shards(f"{directory}/{split}_{directory.rpartition('/')[2]}")
            return Split(shards, _count_records(shards), len(class_names))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"split `{split}` of {directory}: {error}") from error
    difference = _first_difference(checked.class_names, class_names)
    if difference:
        raise ConfigError(
            f"split `{split}` of {directory} was written with other classes: {difference}. Restore "
            "the classes.csv of the conversion, or convert the split again"
        )
    return Split(checked.shards, checked.records_per_shard, len(class_names))


def _find_foreign(directory: str, split: str) -> list[str]:
    """Returns the shards of a split that another program wrote; none if there are none."""
    names = storage.list_folder(directory) if storage.is_folder(directory) else []
    for alias in _ALIASES.get(split, (split,)):
        for ending in ("", ".tfrecord"):
            if any(
                re.fullmatch(rf"{re.escape(alias)}-\d{{5}}-of-\d{{5}}{ending}", n) for n in names
            ):
                return find_shards(f"{directory}/{alias}", ending)
        folder = f"{directory}/{alias}"
        inside = storage.list_folder(folder) if storage.is_folder(folder) else []
        found = [f"{folder}/{name}" for name in inside if name.endswith(_ENDINGS)]
        found = found or [
            f"{directory}/{n}" for n in names if re.fullmatch(rf"{alias}.*\.tfrec", n)
        ]
        if found:
            return sorted(found)
    return []


def _count_records(shards: Sequence[str]) -> list[int]:
    """The records of each shard: from all their names, or else by reading the files."""
    told = [_COUNT_IN_NAME.search(path) for path in shards]
    if all(told):
        return [int(match[1]) for match in told if match]
    return count_records(shards)


def _first_difference(written: Sequence[str], present: Sequence[str]) -> str:
    """Describes the first class id that means another class; empty if the lists are equal."""
    for number, (then, now) in enumerate(zip(written, present, strict=False), start=1):
        if then != now:
            return f"class {number} was {then}, in classes.csv it is {now}"
    if len(written) == len(present):
        return ""
    return f"there were {len(written)}, classes.csv has {len(present)}"
