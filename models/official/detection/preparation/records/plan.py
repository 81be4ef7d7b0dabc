"""The plan of a set: the order of its records, their division into shards, and its paths."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.preparation.records.balance import BalancePlan, summarize_copies
from tpudet.detection.preparation.records.shard_job import FORMAT_VERSION, ShardJob
from tpudet.detection.preparation.sources.annotations import Annotations, take_images
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, PROGRESS_SUFFIX
from tpudet.trainkit.records import shard_path

TARGET_SHARD_BYTES = 100 * 10**6
_SIZE_SAMPLE = 256  # images whose file sizes give the estimate for all


class Plan(NamedTuple):
    """A set to write: one split of a part."""

    annotations: Annotations  # of all images, in the order of the source
    order: np.ndarray  # [records] int64, the row in `annotations.images` of every record
    image_directories: tuple[str, ...]  # searched in this order
    directory: str  # converted/<part>
    split: str
    num_shards: int
    include_masks: bool
    check_pixels: bool  # False: check only the structure of JPEGs
    options: Mapping[str, Any]  # for the manifest
    balance: BalancePlan | None  # None: every image is written once

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
        return f"{self.prefix}{MANIFEST_SUFFIX}"

    @property
    def claim_path(self) -> str:
        """Path of the claim of the process that writes the set."""
        return f"{self.prefix}.claim.json"

    @property
    def progress_directory(self) -> str:
        """Directory that exists while the set is unfinished; holds its shards until then."""
        return f"{self.prefix}{PROGRESS_SUFFIX}"

    def shard_names(self) -> list[str]:
        """The names of the shards, in their order."""
        prefix = os.path.basename(self.prefix)
        return [shard_path(prefix, index, self.num_shards) for index in range(self.num_shards)]

    def copies_by_file(self) -> dict[str, int]:
        """Returns the number of copies of the files that are written more than once."""
        rows, counts = np.unique(self.order, return_counts=True)
        files = self.annotations.images["file"].iloc[rows[counts > 1]]
        return dict(zip(files, counts[counts > 1].tolist(), strict=True))

    def jobs(self, *, write: bool) -> Iterator[ShardJob]:
        """Yields the shards in order; their lengths differ by at most one record."""
        bounds = np.arange(self.num_shards + 1) * len(self.order) // self.num_shards
        for index, name in enumerate(self.shard_names()):
            rows = self.order[bounds[index] : bounds[index + 1]]
            yield ShardJob(
                path=os.path.join(self.progress_directory, name),
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
    """Decides the order of the records and the number of shards.

    Images of `train` are in an order drawn from `seed` that does not depend on the order of the
    source, so that every shard is a fair sample; other splits keep the order of the annotations.

    Args:
        annotations: all images of the split, perhaps with others.
        image_directories: folders to search for the image files, in this order.
        output: converted/<part>; its last component is the name of the part.
        split: train, val or test.
        num_shards: number of files; None makes shards of about 100 MB.
        seed: of the order.
        options: for the manifest, besides seed, check, copies and format version.
        include_masks: write masks, drawn from the segmentations.
        check_pixels: decode every image instead of checking the structure of JPEGs.
        rows: row numbers of the images of the split; None means all.
        balance: how often each of `rows` is written; None means once.

    Raises:
        UserError: `output` has no name of a part, or there are fewer records than shards.
    """
    directory = _part_directory(output)
    rows = np.arange(len(annotations.images)) if rows is None else rows
    copies = np.ones(len(rows), np.int64) if balance is None else balance.copies
    is_train = split == "train"
    order = _shuffled(annotations, rows, copies, seed) if is_train else np.repeat(rows, copies)
    if num_shards is None:
        num_shards = _default_shards(annotations, order, image_directories)
    if not 1 <= num_shards <= len(order):
        raise UserError(
            f"--num_shards {num_shards} must be in 1..{len(order)}, the images of {split}."
        )
    summary = None if balance is None else summarize_copies(balance, annotations.classes)
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
        raise UserError(f"--output {output} must end with the name of the part.")
    return directory


def _shuffled(
    annotations: Annotations, rows: np.ndarray, copies: np.ndarray, seed: int
) -> np.ndarray:
    by_id = order_by_id(annotations, rows)
    return np.random.default_rng(seed).permutation(np.repeat(rows[by_id], copies[by_id]))


def order_by_id(annotations: Annotations, rows: np.ndarray) -> np.ndarray:
    """Returns positions in `rows`, sorted by image id.

    Random choices in this order do not depend on the order of the source.
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
                continue  # perhaps in the next directory; if not, the checks report it
    total = np.mean(sizes) * len(order) if sizes else 0
    return int(np.clip(round(total / TARGET_SHARD_BYTES), 1, max(1, len(order))))
