"""Which images go into which shard, and where the files of a set are."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.preparation.records.balance import BalancePlan, copies_summary
from tpudet.detection.preparation.records.shard_jobs import FORMAT_VERSION, ShardJob
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    PreparationError,
    take_images,
)
from tpudet.trainkit.files import storage
from tpudet.trainkit.records import shard_path

TARGET_SHARD_BYTES = 100 * 10**6
_SIZE_SAMPLE = 256  # images whose sizes are asked for, to estimate the rest


class Plan(NamedTuple):
    """What is to be written, and where."""

    annotations: Annotations  # of all images, in the order in which they were read
    order: np.ndarray  # [records] int64, the row in `annotations.images` of every record
    image_directories: tuple[str, ...]  # the first that has an image's file is read
    directory: str  # converted/<part>
    split: str
    num_shards: int
    include_masks: bool
    check_pixels: bool  # False: of a JPEG check the structure alone
    options: Mapping[str, Any]  # for the manifest
    balance: BalancePlan | None  # where `order` holds copies for the sake of rare classes

    @property
    def part(self) -> str:
        """The name of the data set, the last component of the directory."""
        return os.path.basename(self.directory)

    @property
    def prefix(self) -> str:
        """Path of the shards up to their numbers."""
        return os.path.join(self.directory, f"{self.split}_{self.part}")

    @property
    def manifest_path(self) -> str:
        """Path of the manifest."""
        return f"{self.prefix}.manifest.json"

    @property
    def progress_directory(self) -> str:
        """Directory that exists while the set is unfinished."""
        return f"{self.prefix}.progress"

    def copies_by_file(self) -> dict[str, int]:
        """How often each image is written that is written more than once."""
        rows, counts = np.unique(self.order, return_counts=True)
        files = self.annotations.images["file"].iloc[rows[counts > 1]]
        return dict(zip(files, counts[counts > 1].tolist(), strict=True))

    def jobs(self, *, write: bool) -> Iterator[ShardJob]:
        """The shards in order; their lengths differ by one record at most."""
        bounds = np.arange(self.num_shards + 1) * len(self.order) // self.num_shards
        for index in range(self.num_shards):
            rows = self.order[bounds[index] : bounds[index + 1]]
            yield ShardJob(
                path=shard_path(self.prefix, index, self.num_shards),
                annotations=take_images(self.annotations, rows),
                image_directories=self.image_directories,
                include_masks=self.include_masks,
                check_pixels=self.check_pixels,
                write=write,
            )


def plan_shards(
    annotations: Annotations,
    *,
    image_directories: Sequence[str],
    output: str,
    split: str,
    num_shards: int | None,
    seed: int,
    options: Mapping[str, Any],
    include_masks: bool = False,
    check_pixels: bool = True,
    rows: np.ndarray | None = None,
    balance: BalancePlan | None = None,
) -> Plan:
    """Decides order and number of shards.

    The images of `train` come in an order drawn from `seed`, whatever order they were read in, so
    that every shard is a fair sample; other splits keep the order of the annotations.

    Args:
        annotations: all images of the split, and maybe others.
        image_directories: where their files are; the first that has an image's file is read.
        output: converted/<part>; its last component names the part.
        split: train, val or test.
        num_shards: by default what makes shards of about 100 MB.
        seed: of the order.
        options: for the manifest, which also tells seed, check, copies and the format's version.
        include_masks: draw the segmentations.
        check_pixels: decode every image, not the structure of JPEGs alone.
        rows: the images of the split, by row number; by default all.
        balance: how often each of `rows` is written; by default once.

    Raises:
        PreparationError: `output` names no part, or there are fewer records than shards.
    """
    directory = _part_directory(output)
    rows = np.arange(len(annotations.images)) if rows is None else rows
    copies = np.ones(len(rows), np.int64) if balance is None else balance.copies
    is_train = split == "train"
    order = _shuffled(annotations, rows, copies, seed) if is_train else np.repeat(rows, copies)
    if num_shards is None:
        num_shards = _default_shards(annotations, order, image_directories)
    if not 1 <= num_shards <= len(order):
        raise PreparationError(
            f"--num_shards {num_shards} must be in 1..{len(order)}, the images of {split}."
        )
    summary = None if balance is None else copies_summary(balance, annotations.classes)
    more = {"seed": seed, "image_check": "full" if check_pixels else "headers", "copies": summary}
    return Plan(
        annotations=annotations,
        order=order,
        image_directories=tuple(image_directories),
        directory=directory,
        split=split,
        num_shards=num_shards,
        include_masks=include_masks,
        check_pixels=check_pixels,
        options={**options, **more, "format_version": FORMAT_VERSION},
        balance=balance,
    )


def _part_directory(output: str) -> str:
    directory = output.rstrip("/")
    if not os.path.basename(directory).strip("."):
        raise PreparationError(f"--output {output} must end with the name of the part.")
    return directory


def _shuffled(
    annotations: Annotations, rows: np.ndarray, copies: np.ndarray, seed: int
) -> np.ndarray:
    by_id = order_by_id(annotations, rows)
    return np.random.default_rng(seed).permutation(np.repeat(rows[by_id], copies[by_id]))


def order_by_id(annotations: Annotations, rows: np.ndarray) -> np.ndarray:
    """Positions in `rows`, in the order of the images' ids.

    What is drawn in that order does not depend on the order in which the images were read.
    """
    names = annotations.images["source_id"].to_numpy(dtype=object)
    return np.argsort(names[rows], kind="stable")


def _default_shards(
    annotations: Annotations, order: np.ndarray, image_directories: Sequence[str]
) -> int:
    sample = order[:: max(1, len(order) // _SIZE_SAMPLE)]
    sizes = []
    for file in annotations.images["file"].iloc[sample]:
        for directory in image_directories:
            try:
                sizes.append(storage.stat(os.path.join(directory, file)).size)
                break
            except OSError:
                continue  # the next directory may have it; else the checks report it
    total = np.mean(sizes) * len(order) if sizes else 0
    return int(np.clip(round(total / TARGET_SHARD_BYTES), 1, max(1, len(order))))
