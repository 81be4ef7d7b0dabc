"""Plans the records of folders of images: splits, their order, and their division into shards."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.classification.preparation.build_shard import ShardJob
from tpudet.classification.preparation.class_folders import (
    SPLIT_FOLDERS,
    check_labels,
    find_splits,
    list_class_folders,
    list_classes,
    list_split,
    list_unread,
)
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.digests import division_digest
from tpudet.trainkit.record_manifest import PROGRESS_SUFFIX
from tpudet.trainkit.records import shard_path

TARGET_SHARD_BYTES = 100 * 10**6
_SIZE_SAMPLE = 256  # images whose file sizes give the estimate for all


class Plan(NamedTuple):
    """One split to write."""

    split: str
    directory: str  # of the images
    files: list[tuple[str, tuple[int, ...]]]  # names and class ids, in the order of the records
    classes: tuple[ClassEntry, ...]
    output: str  # converted/<part>
    num_shards: int
    presize: int | None
    dicom: bool = False  # whether the files are DICOM, of which a record holds the stored values
    fold: tuple[int, int] | None = None  # the fold of the images, from 0, and how many there are
    unread: tuple[str, ...] = ()  # names in the directory that are not those of images
    division: str | None = None  # digest of which image is in which split, of all splits

    @property
    def prefix(self) -> str:
        """Path of the shards up to their numbers."""
        return f"{self.output}/{self.split}_{os.path.basename(self.output)}"

    @property
    def progress_folder(self) -> str:
        """Folder that exists while the split is unfinished; holds its shards until then."""
        return self.prefix + PROGRESS_SUFFIX

    def jobs(self) -> list[ShardJob]:
        """Returns the shards in order; their lengths differ by at most one record."""
        name = os.path.basename(self.prefix)
        bounds = np.arange(self.num_shards + 1) * len(self.files) // self.num_shards
        return [
            ShardJob(
                shard_path(f"{self.progress_folder}/{name}", index, self.num_shards),
                self.directory,
                tuple(self.files[bounds[index] : bounds[index + 1]]),
                self.classes,
                self.presize,
                self.dicom,
                self.fold,
            )
            for index in range(self.num_shards)
        ]


def plan_splits(
    source: str,
    output: str,
    *,
    classes_file: str | None,
    num_shards: int | None,
    presize: int | None,
    seed: int,
) -> tuple[list[Plan], list[str]]:
    """Lists the images of each split and decides their order and their division into shards.

    Images of train are in an order drawn from the seed, so that every shard is a fair sample.

    Args:
        source: has the folders train, val (or validation, or valid) and test; see `class_folders`.
        output: converted/<part>; its last component is the name of the part.
        classes_file: class list; None: the class folders of train, sorted.
        num_shards: files per split; None: about 100 MB each.
        presize: larger images are reduced to this shorter side, pixels.
        seed: of the order.

    Returns:
        The plans, and sentences on what of the source is of no split.

    Raises:
        UserError: a split cannot be used, has classes that the list lacks, or is no longer there
            and still in `output`.
    """
    output = output.rstrip("/")
    if not os.path.basename(output).strip("."):
        raise UserError(f"--output {output} must end with the name of the part")
    folders = find_splits(source.rstrip("/"))
    files = {split: list_split(folder) for split, folder in folders.items()}
    _require_no_other_splits(output, files.keys())
    classes = read_classes(classes_file) if classes_file else list_classes(files["train"])
    if len(classes) < 1 or not all(file.label for file in files["train"]):
        raise UserError(f"the images of {folders['train']} are in no class folders")
    for split, found in files.items():
        check_labels(split, found, classes)
    names = {split: sorted(file.filename for file in found) for split, found in files.items()}
    division = division_digest(names)
    order = np.random.default_rng(seed).permutation(len(files["train"]))
    files["train"] = [files["train"][index] for index in order]
    ids, plans = class_ids(classes), []
    for split, found in files.items():
        labelled = [(name, (ids[label],) if label else ()) for name, label in found]
        shards = num_shards or default_shards(folders[split], [name for name, _ in found])
        if shards > len(found):
            raise UserError(f"--num_shards {shards}: {split} has only {len(found)} images")
        plan = Plan(split, folders[split], labelled, classes, output, shards, presize)
        unread = tuple(list_unread(folders[split]))
        plans.append(plan._replace(division=division, unread=unread))
    return plans, _notes(source, folders)


def _notes(source: str, folders: Mapping[str, str]) -> list[str]:
    """Says what of the source is of no split."""
    read = {os.path.basename(folder) for folder in folders.values()}
    others = [name for name in list_class_folders(source) if name not in read]
    splits = ", ".join(name for names in SPLIT_FOLDERS.values() for name in names)
    return (
        [f"folders that are no split ({splits}) are not read: {listing(others)}"] if others else []
    )


def _require_no_other_splits(output: str, splits: Collection[str]) -> None:
    """Refuses an output with a split that the source no longer has: other splits may share images.

    Raises:
        UserError: names the splits.
    """
    left = (splits_in(output) & SPLIT_FOLDERS.keys()) - set(splits)
    if left:
        raise UserError(
            f"{output} has {listing(sorted(left))} of an earlier division, which may hold images "
            f"of {listing(splits)}: remove its files, or give another --output"
        )


def splits_in(output: str) -> set[str]:
    """Returns the names of the splits that have files in a folder of records, finished or not."""
    pattern = re.compile(rf"(\w+)_{re.escape(os.path.basename(output))}[.-].*")
    return {match[1] for match in map(pattern.fullmatch, storage.list_names(output)) if match}


def default_shards(directory: str, files: Sequence[str]) -> int:
    """Returns a number of shards of about 100 MB for the files of a split."""
    sample = files[:: max(1, len(files) // _SIZE_SAMPLE)]
    sizes = [storage.stat(os.path.join(directory, file)).size for file in sample]
    total = float(np.mean(sizes)) * len(files)
    return int(np.clip(round(total / TARGET_SHARD_BYTES), 1, len(files)))
