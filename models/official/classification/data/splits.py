"""Finds the records of a split, or of several that are read as one."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tpudet.classification.data.config import DataConfig
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, read_manifest
from tpudet.trainkit.record_splits import Split, find_split


def find_joined_split(directory: str, splits: str, classes: Sequence[ClassEntry]) -> Split:
    """Finds the shards of one split, or of several joined by `+`, such as `fold_1+fold_2`.

    Raises:
        ConfigError: as `find_split`.
        UserError: a split is named twice, or as `require_one_division`.
    """
    names = [entry.name for entry in classes]
    found = [
        find_split(directory, split, names, per_class="images_per_class")
        for split in splits.split("+")
    ]
    shards = [shard for split in found for shard in split.shards]
    if len(set(shards)) < len(shards):
        raise UserError(f"the splits {splits} have records twice: name each split once")
    require_one_division(directory, splits)
    return Split(
        shards,
        [count for split in found for count in split.records_per_shard],
        len(classes),
        digest="+".join(sorted(split.digest for split in found)),
    )


def find_eval_shards(data: DataConfig, classes: Sequence[ClassEntry], *, train: Split) -> list[str]:
    """Finds the shards of `data.eval_split`, for a run that trains on others.

    Args:
        data: of the experiment.
        classes: rows of the class list.
        train: the records to train on.

    Raises:
        ConfigError: as `find_split`.
        UserError: they are trained on too, or as `find_joined_split` and `require_labels`.
    """
    shards = find_joined_split(data.directory, data.eval_split, classes).shards
    require_labels(data.directory, data.eval_split)
    shared = [os.path.basename(shard) for shard in shards if shard in train.shards]
    if shared:
        raise UserError(
            f"data.train_split {data.train_split} and data.eval_split {data.eval_split} share "
            f"records, which would be trained on and evaluated on: {listing(shared, 3)}. Change "
            "both keys, or train without an evaluation by --mode train"
        )
    return shards


def require_one_division(directory: str, splits: str) -> None:
    """Refuses splits of different divisions: they have images in common.

    A split without labels is of no division: it can be predicted with any other.

    Args:
        directory: of the data set.
        splits: joined by `+`; what has no manifest is not divided by this toolkit.

    Raises:
        UserError: names the splits and their divisions.
    """
    divisions: dict[str, tuple[int | None, str]] = {}
    for split in splits.split("+"):
        manifest = _read_manifest(directory, split)
        if manifest and _has_labels(manifest):
            options = manifest["options"]
            _, count = options.get("fold") or (None, None)
            divisions[split] = count, str(options.get("division") or "unnamed")
    if len(set(divisions.values())) > 1:
        found = listing(
            f"{split} {f'is one of {count} ' if count else ''}(division {division[:8]})"
            for split, (count, division) in divisions.items()
        )
        raise UserError(
            f"the splits in {directory} are of different divisions and share images: {found}. Name "
            "those of one division, or run the conversion of all again with --overwrite"
        )


def require_labels(directory: str, splits: str) -> None:
    """Refuses splits of which no image has a label, as far as their manifests say.

    For a classifier with a sigmoid all images of such a split would count as of no class.

    Args:
        directory: of the data set.
        splits: joined by `+`.

    Raises:
        UserError: names those without a label.
    """
    without = [
        split
        for split in splits.split("+")
        if (manifest := _read_manifest(directory, split)) and not _has_labels(manifest)
    ]
    if without:
        raise UserError(
            f"no image of the split {listing(without)} has a label, so it can neither be trained "
            "on nor scored; tpudet classify and gen_rsna_sub predict images without labels"
        )


def _has_labels(manifest: Mapping[str, Any]) -> bool:
    return any(manifest["images_per_class"].values())


def _read_manifest(directory: str, split: str) -> Mapping[str, Any] | None:
    """Returns the manifest of a split; None for the records of other programs."""
    directory = directory.rstrip("/")
    path = f"{directory}/{split}_{os.path.basename(directory)}{MANIFEST_SUFFIX}"
    if not storage.is_file(path):
        return None
    return read_manifest(path, per_class="images_per_class")
