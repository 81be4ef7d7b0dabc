"""Divides class folders into train, val and test, each class in the same proportions."""

import os
import shutil
from collections.abc import Mapping
from functools import partial
from typing import Literal

import numpy as np

from tpudet.classification.preparation.class_folders import (
    SPLIT_FOLDERS,
    list_labelled,
    list_unread,
)
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_folder import claimed_folder

Method = Literal["copy", "link"]


def split_sizes(count: int, fractions: Mapping[str, float]) -> dict[str, int]:
    """Divides a number of images so that each split is off by less than one.

    What is left after rounding down goes to the largest remainders, to train first if they tie.

    Args:
        count: images of a class.
        fractions: by split; they add up to 1.
    """
    exact = {split: fraction * count for split, fraction in fractions.items()}
    sizes = {split: int(value + 1e-9) for split, value in exact.items()}
    by_remainder = sorted(sizes, key=lambda split: sizes[split] - exact[split])
    for split in by_remainder[: count - sum(sizes.values())]:
        sizes[split] += 1
    return sizes


def split_folders(
    source: str, output: str, *, fractions: Mapping[str, float], seed: int, method: Method
) -> str:
    """Writes `<output>/<split>/<class>/<file>`; the folder gets its name when it is whole.

    Args:
        source: a folder of class folders.
        output: a folder that does not exist yet.
        fractions: by split, train, val or test; they add up to 1.
        seed: of the choice, which depends on the sorted file names of each class alone.
        method: copy the files, or link to them.

    Returns:
        A summary with the number of images of each split.

    Raises:
        UserError: there are no class folders, `output` exists or is a bucket, or a class has too
            few images for an image in each split.
    """
    _check_paths(source, output)
    files = list_labelled(source)
    if not files:
        raise UserError(f"{source} has no class folders; one folder per class is expected")
    by_class: dict[str, list[str]] = {}
    for file in files:
        by_class.setdefault(file.label, []).append(file.filename)
    sizes = {label: split_sizes(len(names), fractions) for label, names in by_class.items()}
    few = [
        f"{label} ({len(by_class[label])})" for label in sizes if min(sizes[label].values()) == 0
    ]
    if few:
        raise UserError(
            f"too few images for one in each of {', '.join(fractions)}: classes {', '.join(few)}. "
            "Add images, remove the classes, or give other --fractions"
        )
    rng = np.random.default_rng(seed)
    with claimed_folder(output, check=partial(_require_free, output)) as folder:
        for label, names in by_class.items():
            order = iter(rng.permutation(len(names)))
            for split, size in sizes[label].items():
                os.makedirs(f"{folder}/{split}/{label}")
                for index in sorted(next(order) for _ in range(size)):
                    _place(source, names[index], f"{folder}/{split}", method)
    totals = {split: sum(size[split] for size in sizes.values()) for split in fractions}
    counted = ", ".join(f"{split} {total}" for split, total in totals.items())
    unread = list_unread(source)
    note = f"\n  {len(unread)} have no extension of images: {listing(unread, 3)}" if unread else ""
    return f"{output}: {len(files)} images of {len(by_class)} classes: {counted}{note}"


def _check_paths(source: str, output: str) -> None:
    if storage.is_remote(source) or storage.is_remote(output):
        raise UserError(
            "split_folders works on local folders: images_to_tfrecords writes to buckets"
        )
    if not storage.is_folder(source):
        raise UserError(f"no directory {source}")
    _require_free(output)
    if os.path.realpath(output).startswith(os.path.realpath(source) + os.sep):
        raise UserError(f"{output} is inside {source}, where it would become a class folder")
    known = {name for names in SPLIT_FOLDERS.values() for name in names}
    splits = known.intersection(storage.list_folder(source))
    if splits:
        raise UserError(
            f"{source} is divided already: it has the folders {', '.join(sorted(splits))}"
        )


def _require_free(output: str) -> None:
    if storage.exists(output):
        raise UserError(f"{output} exists: remove it or give another --output")


def _place(source: str, filename: str, folder: str, method: Method) -> None:
    found, target = os.path.join(source, filename), os.path.join(folder, filename)
    if method == "link":
        os.symlink(os.path.realpath(found), target)
    else:
        shutil.copy2(found, target)
