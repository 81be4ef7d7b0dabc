"""Which images go into which shard, and where the files of a set are."""

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.preparation.annotations import (
    Annotations,
    PreparationError,
    reorder_images,
    split_evenly,
)
from detection.preparation.shard_jobs import ShardJob
from trainkit.records import shard_path

TARGET_SHARD_BYTES = 100 * 10**6
_SIZE_SAMPLE = 256  # images whose sizes are asked for, to estimate the rest


class Plan(NamedTuple):
    """What is to be written, and where."""

    annotations: Annotations  # in the order of the records
    image_directory: str
    directory: str  # converted/<part>
    split: str
    num_shards: int
    include_masks: bool
    options: Mapping[str, Any]  # for the manifest

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

    def jobs(self, *, write: bool) -> Iterator[ShardJob]:
        """The shards in order."""
        pieces = split_evenly(self.annotations, self.num_shards)
        for index, piece in enumerate(pieces):
            path = shard_path(self.prefix, index, self.num_shards)
            yield ShardJob(path, piece, self.image_directory, self.include_masks, write)


def plan_shards(
    annotations: Annotations,
    *,
    image_directory: str,
    output: str,
    split: str,
    num_shards: int | None,
    seed: int,
    include_masks: bool,
    options: Mapping[str, Any],
) -> Plan:
    """Decides order and number of shards.

    The images of `train` are put in an order drawn from `seed`, so that every shard is a fair
    sample; those of other splits keep the order of the annotations, so that evaluations and their
    pictures can be compared. Both depend on nothing else.

    Args:
        annotations: all images of the split.
        image_directory: where their files are.
        output: converted/<part>; its last component names the part.
        split: train, val or test.
        num_shards: by default what makes shards of about 100 MB.
        seed: of the order.
        include_masks: draw the segmentations.
        options: for the manifest.

    Raises:
        PreparationError: `output` names no part, or there are fewer images than shards.
    """
    directory = output.rstrip("/")
    if not os.path.basename(directory).strip("."):
        raise PreparationError(f"--output {output} must end with the name of the part.")
    count = len(annotations.images)
    if num_shards is None:
        num_shards = _default_shards(annotations, image_directory)
    if not 1 <= num_shards <= count:
        raise PreparationError(f"--num_shards {num_shards} must be in 1..{count}, the images.")
    if split == "train":
        annotations = reorder_images(annotations, np.random.default_rng(seed).permutation(count))
    return Plan(annotations, image_directory, directory, split, num_shards, include_masks, options)


def _default_shards(annotations: Annotations, image_directory: str) -> int:
    files = annotations.images["file"].tolist()
    sample = files[:: max(1, len(files) // _SIZE_SAMPLE)]
    sizes = []
    for file in sample:
        try:
            sizes.append(tf.io.gfile.stat(os.path.join(image_directory, file)).length)
        except tf.errors.OpError:
            continue  # the checks report it
    total = np.mean(sizes) * len(files) if sizes else 0
    return int(np.clip(round(total / TARGET_SHARD_BYTES), 1, len(files)))
