"""Writes the cache of an experiment's training samples; resumable."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf
from tqdm import tqdm

from tpudet.classification.data.augmentations import build_augmentations
from tpudet.classification.data.config import DataConfig
from tpudet.classification.data.record import parse_example, read_schema
from tpudet.classification.data.sample_cache import (
    FORMAT_VERSION,
    MANIFEST,
    PREFIX,
    before_mixing,
    describe_samples,
    encode_sample,
    require_fixed_part,
    usable_entries,
)
from tpudet.classification.data.samples import (
    check_windows,
    decode_example,
    evaluation_crop,
    training_sample,
)
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.images.mixed_stream import ImageAugmentation
from tpudet.trainkit.images.seeds import fold_seed
from tpudet.trainkit.input_errors import input_errors_in_words
from tpudet.trainkit.records import (
    RECORDS_PER_SHARD_LIMIT,
    shard_path,
    unconverted,
    without_tuning,
    write_shard,
)
from tpudet.trainkit.types import Tensor

_NUM_CORES = os.cpu_count() or 1
_PLAN = "cache.plan.json"  # of a cache that is being written
_BYTES_PER_RECORD = 160  # besides the pixels
_MIB = 1 << 20


class CachePlan(NamedTuple):
    """The contents of a cache, before it is written."""

    data: DataConfig
    output: str
    shards: Sequence[str]  # of the training split
    records_per_shard: Sequence[int]
    num_classes: int
    variants: int  # 0: the centre of each image
    seed: int  # of the variants

    @property
    def num_samples(self) -> int:
        """Of all variants."""
        return sum(self.records_per_shard) * max(1, self.variants)

    @property
    def num_bytes(self) -> int:
        """Estimated size on the disk."""
        height, width = self.data.image_size
        return self.num_samples * (height * width * 3 + _BYTES_PER_RECORD)

    def describe(self) -> dict[str, Any]:
        """Returns the manifest without its shards."""
        made_from = describe_samples(
            self.data, self.shards, self.records_per_shard, is_augmented=self.variants > 0
        )
        return {
            "format": FORMAT_VERSION,
            "variants": self.variants,
            "seed": self.seed,
            "made_from": made_from,
        }


def write_cache(plan: CachePlan, *, overwrite: bool) -> str:
    """Writes the samples of a plan, one file for each shard and variant, and the manifest.

    Finished files of an interrupted run with the same plan are kept.

    Args:
        plan: what to write.
        overwrite: replace a cache of another plan.

    Returns:
        A summary.

    Raises:
        UserError: the disk is too small, there is another cache, or an image cannot be decoded.
    """
    if not plan.variants:
        require_fixed_part(plan.data)
    described, output = plan.describe(), plan.output
    storage.make_folder(output)
    with Claim(f"{output}/cache.claim.json", output=output) as claim:
        _clear_other(plan, described, overwrite=overwrite)
        _require_space(plan)
        # At any moment one of the two says whose the files are.
        storage.write_text(f"{output}/{_PLAN}", json.dumps(described))
        if storage.is_file(f"{output}/{MANIFEST}"):
            storage.remove(f"{output}/{MANIFEST}")
        entries = []
        with tqdm(total=plan.num_samples, unit="image", desc="caching", disable=None) as bar:
            for variant in range(max(1, plan.variants)):
                for index in range(len(plan.shards)):
                    claim.verify()
                    entries.append(_write_shard(plan, variant, index, bar))
        claim.verify()
        text = json.dumps({**described, "shards": entries}, indent=1) + "\n"
        storage.write_text(f"{output}/{MANIFEST}", text)
        storage.remove(f"{output}/{_PLAN}")
    size = sum(entry["bytes"] for entry in entries)
    return f"{output}: {plan.num_samples} samples, {size / _MIB:,.1f} MiB; train with data.cache"


def _clear_other(plan: CachePlan, described: dict[str, Any], *, overwrite: bool) -> None:
    """Removes damaged files of this plan and, if `overwrite` allows it, those of another one."""
    output = plan.output
    for name in (MANIFEST, _PLAN):
        text = storage.read_text(f"{output}/{name}")
        if text is None:
            continue
        before = _read_fields(text)
        entries = usable_entries(before.pop("shards", []))
        if before == described:
            for entry in entries:  # of the manifest; files beside a plan are whole
                path = f"{output}/{entry['file']}"
                if storage.is_file(path) and storage.stat(path).size != entry["bytes"]:
                    storage.remove(path)
            return
        if not overwrite:
            raise UserError(
                f"{output}/{name} is of other records or settings: --overwrite replaces the cache"
            )
        storage.remove(f"{output}/{name}")
    others = [name for name in storage.list_folder(output) if name.startswith(f"{PREFIX}-")]
    if others and not overwrite:
        raise UserError(
            f"{output} holds files that belong to no cache: {listing(others, 3)}; name another "
            "--output, or let --overwrite remove them"
        )
    for name in others:
        storage.remove(f"{output}/{name}")


def _read_fields(text: str) -> dict[str, Any]:
    try:
        return dict(parse_json(text))
    except (ValueError, TypeError):  # cut short
        return {}


def _require_space(plan: CachePlan) -> None:
    """Raises UserError if the samples that are still to be written do not fit on the disk."""
    if storage.is_remote(plan.output):
        return
    there = [name for name in storage.list_folder(plan.output) if name.startswith(f"{PREFIX}-")]
    needed = plan.num_bytes - sum(storage.stat(f"{plan.output}/{name}").size for name in there)
    free = shutil.disk_usage(plan.output).free
    if needed > free:
        raise UserError(
            f"{plan.output} needs {needed / _MIB:,.0f} MiB, and {free / _MIB:,.0f} MiB are free: "
            "lower --variants or data.image_size, or name a folder on another disk"
        )


def _write_shard(plan: CachePlan, variant: int, index: int, bar: Any) -> dict[str, Any]:
    """Writes one file, unless it is there; returns its entry in the manifest."""
    number, count = variant * len(plan.shards) + index, max(1, plan.variants) * len(plan.shards)
    path, records = shard_path(f"{plan.output}/{PREFIX}", number, count), plan.records_per_shard
    if storage.is_file(path):
        bar.update(records[index])
    else:
        with input_errors_in_words(lambda: [plan.shards[index]]):
            write_shard(path, _encoded_samples(plan, variant, index, bar))
    return {
        "file": os.path.basename(path),
        "records": records[index],
        "bytes": storage.stat(path).size,
    }


def _encoded_samples(plan: CachePlan, variant: int, index: int, bar: Any) -> Iterator[bytes]:
    for image, labels, image_id in _samples(plan, variant, index).as_numpy_iterator():
        yield encode_sample(image.tobytes(), labels.tolist(), image_id)
        bar.update(1)


def _samples(plan: CachePlan, variant: int, index: int) -> tf.data.Dataset:
    """Yields image, labels and name of each record of a shard, in file order."""
    data, schema = plan.data, check_windows(plan.data, read_schema(plan.shards))
    cached = build_augmentations(before_mixing(data.augmentations))
    center = partial(evaluation_crop, image_size=data.image_size, share=data.center_crop)

    def prepare(index_in_shard: Tensor, serialized: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        example = parse_example(serialized, schema)
        if not plan.variants:
            image = decode_example(example, data, center)
            return image, example.labels, example.image_id
        sample = training_sample(
            tf.constant(variant, tf.int64),
            index * RECORDS_PER_SHARD_LIMIT + index_in_shard,
            serialized,
            data=data,
            schema=schema,
            seed=plan.seed,
            num_classes=plan.num_classes,
            is_multi_label=True,  # training checks the number of labels
        )
        for number, augmentation in enumerate(cached):
            assert isinstance(augmentation, ImageAugmentation)
            sample = augmentation.apply(sample, fold_seed(sample.seed, number))
        return sample.image, example.labels, example.image_id

    records = tf.data.TFRecordDataset(plan.shards[index]).enumerate()
    prepared = records.map(unconverted(prepare), num_parallel_calls=_NUM_CORES, deterministic=True)
    return without_tuning(prepared.prefetch(8))
