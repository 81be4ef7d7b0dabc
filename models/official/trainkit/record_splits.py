"""Finds the TFRecord files of a split and checks that they are finished and of these classes."""

import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.trainkit.class_list import (
    ClassEntry,
    first_difference,
    read_class_list,
    read_label_map,
    write_class_list,
)
from tpudet.trainkit.config.yaml_tree import ConfigError
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import PerClass, check_manifest, first_renamed_class
from tpudet.trainkit.records import count_records, find_shards

_ALIASES = {"val": ("val", "validation", "valid")}
_ENDINGS = (".tfrec", ".tfrecord")
_RECORD_ENDINGS = (".record", ".records", ".tfrecord", ".tfrecords")
_COUNT_IN_NAME = re.compile(r"-(\d+)\.tfrec$")


logger = logging.getLogger(__name__)


class Split(NamedTuple):
    """The TFRecord files of one split."""

    shards: list[str]
    records_per_shard: list[int]
    num_classes: int  # that its labels may name
    manifest: Mapping[str, Any] | None = None  # records of other programs have none
    digest: str = ""  # of the files' names, numbers of records and sizes


def find_split(
    directory: str,
    split: str,
    class_names: Sequence[str],
    *,
    per_class: PerClass = "boxes_per_class",
) -> Split:
    """Finds the shards of a split: those of this toolkit, else those of another program.

    Other programs' are, with `validation` and `valid` also for val, `<split>-00000-of-01024` with
    or without .tfrecord; all .tfrec and .tfrecord files of a folder `<split>`; `<split>*.tfrec`; or
    one set of .record or .tfrecord files with the split as a word of its name, such as
    `coco_train.record` or `pascal-train.record-00000-of-00010`. In a bucket, where counting
    reads every file, names that end in `-<number>.tfrec`, as Kaggle's do, are taken as the numbers
    of records, if the first file's name proves right.

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
            prefix = f"{directory}/{split}_{directory.rpartition('/')[2]}"
            shards = _find_foreign(directory, split)
            if not shards and not storage.glob(f"{prefix}-?????-of-?????.tfrecord"):
                shards = _find_by_word(directory, split)
            if shards:
                logger.info("split %s: files of records: %s", split, listing(shards, 2))
            shards = shards or find_shards(prefix)
            counts = _count_records(shards)
            if not any(counts):
                raise ValueError(f"no record is in {listing(shards)}")
            files = [os.path.basename(path) for path in shards]
            # In a bucket each size would be a request more.
            sizes = [0 if storage.is_remote(path) else storage.stat(path).size for path in shards]
            digest = _digest([*zip(files, counts, sizes, strict=True)])
            return Split(shards, counts, len(class_names), digest=digest)
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(f"split `{split}` of {directory}: {error}") from error
    difference = first_renamed_class(checked.class_names, class_names)
    if difference:
        raise ConfigError(
            f"split `{split}` of {directory} was written with other classes: {difference}. Restore "
            "the classes.csv of the conversion, or convert the split again"
        )
    manifest = checked.manifest
    digest = _digest([(one["file"], one["records"], one["bytes"]) for one in manifest["shards"]])
    return Split(checked.shards, checked.records_per_shard, len(class_names), manifest, digest)


def _digest(files: Sequence[tuple[str, int, int]]) -> str:
    return hashlib.sha256(repr(sorted(files)).encode()).hexdigest()


def watch_files(split: Split) -> Callable[[], bool]:
    """Returns a function that tells whether the files of a split were replaced since this call.

    It looks at the first and the last one: who rewrites a set writes all of it.
    """
    before = {path: storage.stat(path) for path in (split.shards[0], split.shards[-1])}

    def are_replaced() -> bool:
        try:
            return any(storage.stat(path) != state for path, state in before.items())
        except FileNotFoundError:
            return True
        except OSError:  # reading will say why
            return False

    return are_replaced


def class_list_beside(directory: str) -> str | None:
    """Returns the class list in a folder of records: classes.csv, or else its label map, *.pbtxt.

    Returns:
        Its text, which `read_class_list` reads; None if there is neither.

    Raises:
        ConfigError: the file is not usable, or there are several label maps.
    """
    path = f"{directory.rstrip('/')}/classes.csv"
    text = storage.read_text(path)
    try:
        if text is not None:
            read_class_list(text)
            return text
        maps = [name for name in storage.list_names(directory) if name.endswith(".pbtxt")]
        if not maps:
            return None
        if len(maps) > 1:
            raise ConfigError(f"{directory} has several label maps: {listing(maps)}; keep one")
        path = f"{directory.rstrip('/')}/{maps[0]}"
        return write_class_list(read_label_map(storage.read_text(path) or ""))
    except ConfigError:
        raise
    except UserError as error:
        raise ConfigError(f"{path}: {error}") from error


def require_classes(directory: str, classes: Sequence[ClassEntry]) -> None:
    """Refuses records whose folder has another class list: a model's ids mean other classes there.

    Args:
        directory: of the data set.
        classes: of the model.

    Raises:
        ConfigError: as `class_list_beside`.
        UserError: names the first class that differs.
    """
    text = class_list_beside(directory)
    difference = first_difference(classes, read_class_list(text)) if text else None
    if difference:
        raise UserError(
            f"the class list in {directory} is not that of the model: {difference}. Take records "
            "with the classes of the model; if only the list is wrong, restore or remove it"
        )


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


def _find_by_word(directory: str, split: str) -> list[str]:
    """Returns the shards of the one set that has the split as a word of its name, or none.

    Raises:
        UserError: there are several.
        FileNotFoundError: some shards are missing.
    """
    sets: dict[str, set[str]] = {}
    for alias in _ALIASES.get(split, (split,)):
        pattern = re.compile(
            rf"((?:.*[._-])?{re.escape(alias)}(?:[._-].*?)??(?:\.(?:tf)?records?)?)"
            r"(-\d{5}-of-\d{5})?(\.(?:tf)?records?)?"
        )
        for name in storage.list_names(directory):
            match = pattern.fullmatch(name)
            if match and (match[2] or name.endswith(_RECORD_ENDINGS)):
                stem = match[1] if match[2] else name
                sets.setdefault(stem, set()).add(match[3] or "" if match[2] else "whole")
    if len(sets) > 1:
        raise UserError(
            f"several sets of records match: {listing(sorted(sets))}. Move the others to "
            "folders of their own"
        )
    for stem, endings in sets.items():
        if endings == {"whole"}:
            return [f"{directory}/{stem}"]
        return find_shards(f"{directory}/{stem}", min(endings))
    return []


def _count_records(shards: Sequence[str]) -> list[int]:
    """The records of each shard, by reading the files; see `find_split` for those in a bucket."""
    told = [match for path in shards if (match := _COUNT_IN_NAME.search(path))]
    if storage.is_remote(shards[0]) and len(told) == len(shards):
        counts = [int(match[1]) for match in told]  # or only the numbers of the files
        if counts[:1] == count_records(shards[:1]):
            return counts
    return count_records(shards)


def first_records(split: Split, fraction: float) -> Split:
    """Returns the split with a part of its records, the first of each file, one at least.

    Args:
        split: of whole files.
        fraction: above 0, at most 1; rounded up to whole records.
    """
    counts = [math.ceil(fraction * count) for count in split.records_per_shard]
    return split._replace(records_per_shard=counts)
