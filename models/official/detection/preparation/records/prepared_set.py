"""Reads the description of a finished part: class list, manifests, and the paths of its shards."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tpudet.detection.preparation.sources.input_files import list_directory
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import (
    MANIFEST_SUFFIX,
    PROGRESS_SUFFIX,
    first_renamed_class,
    read_manifest,
)

_SPLIT_ORDER = ("train", "val", "test")


class PreparedSplit(NamedTuple):
    """One complete split: it has a manifest, and every shard has the size recorded in it."""

    name: str  # train, val or test
    manifest_path: str
    manifest: Mapping[str, Any]
    shards: tuple[str, ...]  # paths, in the order of their numbers


class PreparedSet(NamedTuple):
    """One part."""

    directory: str
    part: str
    classes: tuple[ClassEntry, ...]
    splits: tuple[PreparedSplit, ...]  # train, val, test
    unfinished: tuple[str, ...]  # names of the folders of splits that are still being written


def read_prepared_set(directory: str) -> PreparedSet:
    """Reads the class list and the manifests, and checks that they and the shards belong together.

    Raises:
        UserError: the folder, the class list, the manifests or a shard is missing, a shard has
            another size than in its manifest, or a split was written with other classes or in
            another order. All wrong files are listed.
    """
    directory = directory.rstrip("/") or "/"
    names = list_directory(directory, "PART_DIR")
    manifests = [name for name in names if name.endswith(MANIFEST_SUFFIX)]
    unfinished = tuple(name for name in names if name.endswith(PROGRESS_SUFFIX))
    if not manifests:
        begun = f" Still being written, or interrupted: {', '.join(unfinished)}."
        raise UserError(
            f"PART_DIR {directory} holds no *{MANIFEST_SUFFIX}, so it is not a finished set; "
            f"tpudet make_tfrecords or gen_tfrecords writes one.{begun if unfinished else ''}"
        )
    splits = [_read_split(directory, name) for name in manifests]
    splits.sort(key=lambda split: (_order(split.name), split.manifest_path))
    _check_shards(splits)
    _check_names(splits)
    classes = read_classes(os.path.join(directory, "classes.csv"), "The class list")
    _check_classes(splits, [entry.name for entry in classes])
    return PreparedSet(
        directory=directory,
        part=splits[0].manifest["part"],
        classes=classes,
        splits=tuple(splits),
        unfinished=unfinished,
    )


def _order(split: str) -> int:
    return _SPLIT_ORDER.index(split) if split in _SPLIT_ORDER else len(_SPLIT_ORDER)


def _read_split(directory: str, name: str) -> PreparedSplit:
    path = os.path.join(directory, name)
    manifest = read_manifest(path)
    shards = sorted(os.path.join(directory, entry["file"]) for entry in manifest["shards"])
    return PreparedSplit(manifest["split"], path, manifest, tuple(shards))


def _check_shards(splits: Sequence[PreparedSplit]) -> None:
    mistakes = []
    for split in splits:
        sizes = {entry["file"]: entry["bytes"] for entry in split.manifest["shards"]}
        for path in split.shards:
            wanted = sizes[os.path.basename(path)]
            if not storage.exists(path):
                mistakes.append(f"{path} is missing")
            elif (size := storage.stat(path).size) != wanted:
                mistakes.append(f"{path} has {size} bytes, its manifest says {wanted}")
    if mistakes:
        more = f"\n  and {len(mistakes) - 10} more" if len(mistakes) > 10 else ""
        raise UserError(
            "The set is damaged; write it again with --overwrite:\n"
            + "\n".join(f"  {mistake}" for mistake in mistakes[:10])
            + more
        )


def _check_names(splits: Sequence[PreparedSplit]) -> None:
    """One folder holds one part, and every split of it once."""
    seen: dict[str, PreparedSplit] = {}
    for split in splits:
        other = seen.setdefault(split.name, split)
        if other is not split:
            raise UserError(
                f"{other.manifest_path} and {split.manifest_path} both describe the split "
                f"{split.name}: a folder holds one part. Move one of them, with its shards, away."
            )


def _check_classes(splits: Sequence[PreparedSplit], names: Sequence[str]) -> None:
    mistakes = [
        f"{split.manifest_path}: {difference}"
        for split in splits
        if (difference := first_renamed_class(list(split.manifest["boxes_per_class"]), names))
    ]
    if mistakes:
        raise UserError(
            "The set was written with other classes than classes.csv has; restore the classes.csv "
            "of the conversion, or convert it again:\n"
            + "\n".join(f"  {mistake}" for mistake in mistakes)
        )
