"""Finds the records of a split, or of several that are read as one."""

import os
from collections.abc import Sequence

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, read_manifest
from tpudet.trainkit.record_splits import Split, find_split


def find_joined_split(directory: str, splits: str, classes: Sequence[ClassEntry]) -> Split:
    """Finds the shards of one split, or of several joined by `+`, such as `fold_1+fold_2`.

    Raises:
        ConfigError: as `find_split`.
        UserError: as `require_one_division`.
    """
    names = [entry.name for entry in classes]
    found = [
        find_split(directory, split, names, per_class="images_per_class")
        for split in splits.split("+")
    ]
    require_one_division(directory, splits)
    return Split(
        [shard for split in found for shard in split.shards],
        [count for split in found for count in split.records_per_shard],
        len(classes),
    )


def require_one_division(directory: str, splits: str) -> None:
    """Refuses folds of different divisions: they have images in common.

    Args:
        directory: of the data set.
        splits: joined by `+`; those without a manifest are no folds of this toolkit.

    Raises:
        UserError: names the folds and their numbers.
    """
    directory = directory.rstrip("/")
    divisions: dict[str, tuple[int, str]] = {}
    for split in splits.split("+"):
        path = f"{directory}/{split}_{os.path.basename(directory)}{MANIFEST_SUFFIX}"
        if storage.is_file(path):
            match read_manifest(path, per_class="images_per_class")["options"]:
                case {"fold": [int(), int(count)], **others}:
                    divisions[split] = count, str(others.get("division") or "unnamed")
    if len(set(divisions.values())) > 1:
        found = listing(
            f"{split} is one of {count} (division {division[:8]})"
            for split, (count, division) in divisions.items()
        )
        raise UserError(
            f"the folds of {directory} are of different divisions and share images: {found}. Name "
            "those of one division, or write all anew with dicom_to_tfrecords --overwrite"
        )


def require_labels(directory: str, splits: str, classes: Sequence[ClassEntry]) -> None:
    """Refuses splits of which no image has a label, as far as their manifests say.

    Args:
        directory: of the data set.
        splits: joined by `+`.
        classes: rows of the class list.

    Raises:
        UserError: there is no label in any of them.
        ConfigError: as `find_split`.
    """
    names = [entry.name for entry in classes]
    for split in splits.split("+"):
        manifest = find_split(directory, split, names, per_class="images_per_class").manifest
        if manifest is None or any(manifest["images_per_class"].values()):
            return
    raise UserError(
        f"no image of the split {splits} has a label, so it cannot be scored; tpudet classify and "
        "gen_rsna_sub predict images without labels"
    )
