"""A cache of training samples: images decoded, cropped and resized once, perhaps augmented n times.

A cache of n variants holds, for v below n, each sample as epoch v of a run with its seed would have
it: crop, flip and the augmentations before the first that mixes images are done. One without
variants holds the centre of each image, of which flip and augmentations are still drawn.

`samples-00000-of-00020.tfrecord`, ... hold `image/pixels` (H x W x 3 bytes), `image/class/label`
and `image/filename`; `cache.json`, written last, says what they were made from.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import tensorflow as tf

from tpudet.classification.data.config import (
    AugmentationConfig,
    CutmixConfig,
    DataConfig,
    MixupConfig,
)
from tpudet.classification.data.record import Example
from tpudet.classification.data.sample import Sample
from tpudet.classification.data.samples import build_targets, flip_at_random
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.images.mixed_stream import Augmentation, ImageAugmentation
from tpudet.trainkit.images.seeds import record_seed
from tpudet.trainkit.record_manifest import MANIFEST_SUFFIX, are_shards, is_count, is_shard
from tpudet.trainkit.types import Tensor

FORMAT_VERSION = 1
MANIFEST = "cache.json"
PREFIX = "samples"
_PIXELS, _LABEL, _NAME = "image/pixels", "image/class/label", "image/filename"
_REMEDY = "write it again: tpudet cache_samples CONFIG --output {} --variants {} --overwrite"


class SampleCache(NamedTuple):
    """The files of a cache that fits an experiment."""

    shards: list[str]
    records_per_shard: list[int]
    is_augmented: bool  # crop, flip and augmentations of single images are done


def describe_samples(
    data: DataConfig,
    shards: Sequence[str],
    records_per_shard: Sequence[int],
    *,
    is_augmented: bool,
) -> dict[str, Any]:
    """Returns what the samples depend on, as JSON values: another description means another cache.

    Args:
        data: of the experiment.
        shards: of its training split.
        records_per_shard: records of each.
        is_augmented: whether crop, flip and augmentations are done.
    """
    directory = data.directory.rstrip("/")
    manifests = [
        storage.read_text(f"{directory}/{split}_{os.path.basename(directory)}{MANIFEST_SUFFIX}")
        for split in data.train_split.split("+")
    ]
    # Of the manifests only what the shards were made from: a split may be added beside them.
    made_from = [text and parse_json(text)["shards"] for text in manifests]
    states = [storage.stat(path) for path in shards]
    described: dict[str, Any] = {
        "files": [
            [os.path.basename(path), state.size, count]
            for path, state, count in zip(shards, states, records_per_shard, strict=True)
        ],
        # Without a manifest a label that is corrected in place shows by nothing else.
        "times": [state.modified_ns for state in states] if None in manifests else [],
        "manifests": hashlib.sha256(json.dumps(made_from).encode()).hexdigest(),
        "data.image_size": data.image_size,
        "data.center_crop": data.center_crop,
        "data.windows": data.windows,
    }
    if is_augmented:
        described |= {
            "data.random_affine": data.random_affine and asdict(data.random_affine),
            "data.random_crop": data.random_crop and asdict(data.random_crop),
            "data.horizontal_flip": data.horizontal_flip,
            "data.augmentations": [asdict(config) for config in before_mixing(data.augmentations)],
        }
    return json.loads(json.dumps(described))


def before_mixing(configs: Sequence[AugmentationConfig]) -> Sequence[AugmentationConfig]:
    """Returns the augmentations before the first that mixes images: those that can be cached."""
    mixing = [isinstance(config, MixupConfig | CutmixConfig) for config in configs]
    return configs[: mixing.index(True)] if True in mixing else configs


def require_fixed_part(data: DataConfig) -> None:
    """Raises UserError if the part of an image is random: a cache without variants has one."""
    for key in ("random_crop", "random_affine"):
        if getattr(data, key) is not None:
            raise UserError(
                f"a cache without variants holds the centre of each image, and data.{key} draws "
                f"another part each time: set data.{key} to null, or cache some --variants"
            )


def find_cache(
    data: DataConfig, shards: Sequence[str], records_per_shard: Sequence[int]
) -> SampleCache:
    """Finds the cache in `data.cache`.

    Args:
        data: of the experiment.
        shards: of its training split.
        records_per_shard: records of each.

    Raises:
        UserError: there is no finished cache, it is damaged, or it was made of other records or
            with other settings; names what differs.
    """
    directory = data.cache.rstrip("/")
    manifest = _read_manifest(f"{directory}/{MANIFEST}")
    is_augmented = manifest["variants"] > 0
    if not is_augmented:
        require_fixed_part(data)
    now = describe_samples(data, shards, records_per_shard, is_augmented=is_augmented)
    changes = _changes(manifest["made_from"], now)
    if changes:
        remedy = _REMEDY.format(directory, manifest["variants"])
        raise UserError(f"the cache {directory} is stale: {listing(changes)}; {remedy}")
    damaged = []
    for entry in manifest["shards"]:
        path = f"{directory}/{entry['file']}"
        size = storage.stat(path).size if storage.is_file(path) else 0
        if size != entry["bytes"]:
            damaged.append(f"{entry['file']} has {size} bytes of {entry['bytes']}")
    if damaged:
        remedy = _REMEDY.format(directory, manifest["variants"])
        raise UserError(f"the cache {directory} is damaged: {listing(damaged)}; {remedy}")
    return SampleCache(
        shards=[f"{directory}/{entry['file']}" for entry in manifest["shards"]],
        records_per_shard=[entry["records"] for entry in manifest["shards"]],
        is_augmented=is_augmented,
    )


def _read_manifest(path: str) -> dict[str, Any]:
    text = storage.read_text(path)
    if text is None:
        raise UserError(
            f"{path} does not exist: data.cache names no finished cache; write one with tpudet "
            f"cache_samples CONFIG --output {os.path.dirname(path)}"
        )
    try:
        manifest = parse_json(text)
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or not _is_manifest(manifest):
        remedy = _REMEDY.format(os.path.dirname(path), "N")
        raise UserError(f"{path} is not a manifest of this version, or was cut short; {remedy}")
    return manifest


def _is_manifest(manifest: Mapping[str, Any]) -> bool:
    """Whether JSON values are a manifest of this version, of files in its own folder."""
    variants, made_from, shards = (manifest.get(key) for key in ("variants", "made_from", "shards"))
    return (
        manifest.get("format") == FORMAT_VERSION
        and is_count(variants)
        and isinstance(made_from, dict)
        and isinstance(shards, list)
        and are_shards(shards)
        and any(entry["records"] for entry in shards)
    )


def usable_entries(shards: Any) -> list[dict[str, Any]]:
    """Returns those of a manifest's files that are described wholly and are in its own folder."""
    entries = shards if isinstance(shards, list) else []
    return [entry for entry in entries if is_shard(entry)]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [key for key in now if before.get(key) != now[key]]
    return [
        f"{key} was {json.dumps(before.get(key))} and is {json.dumps(now[key])}"
        if key.startswith("data.")
        else f"the {key} of the records have changed"
        for key in changed
    ]


def encode_sample(image: bytes, labels: Sequence[int], image_id: bytes) -> bytes:
    """Serializes a sample. Inverse of `parse_sample`.

    Args:
        image: H x W x 3 bytes.
        labels: class ids, from 1.
        image_id: see `Example`.
    """
    features = {
        _PIXELS: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        _LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=labels)),
        _NAME: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image_id])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


def parse_sample(serialized: Tensor, image_size: tuple[int, int]) -> tuple[Tensor, Example]:
    """Returns the image, [H, W, 3] uint8, and its labels. Inverse of `encode_sample`."""
    text: Any = tf.io.FixedLenFeature([], tf.string)
    keys = {_PIXELS: text, _LABEL: tf.io.VarLenFeature(tf.int64), _NAME: text}
    parsed = tf.io.parse_single_example(serialized, keys)
    labels = tf.ensure_shape(parsed[_LABEL].values, [None])
    height, width = image_size
    num_bytes = tf.strings.length(parsed[_PIXELS])
    fault = (
        f"The pixels of this record are not {height} x {width} x 3 bytes, write the cache again:"
    )
    where = [fault, num_bytes, parsed[_NAME]]
    with tf.control_dependencies([tf.debugging.Assert(num_bytes == height * width * 3, where)]):
        encoded = tf.identity(parsed[_PIXELS])
    pixels = tf.reshape(tf.io.decode_raw(encoded, tf.uint8), [height, width, 3])
    return pixels, Example(parsed[_PIXELS], labels, parsed[_NAME])


def cached_sample(
    epoch: Tensor,
    record: Tensor,
    serialized: Tensor,
    *,
    data: DataConfig,
    is_augmented: bool,
    seed: int,
    num_classes: int,
    is_multi_label: bool,
) -> Sample:
    """Returns a cached sample; the arguments are those of `samples.training_sample`."""
    image, example = parse_sample(serialized, data.image_size)
    stateless_seed = record_seed(seed, epoch, record)
    if data.horizontal_flip and not is_augmented:
        image = flip_at_random(image, stateless_seed)
    targets = build_targets(example, record, num_classes, may_lack=is_multi_label)
    return Sample(image=image, targets=targets, seed=stateless_seed, record=record)


def without_cached(
    augmentations: Sequence[Augmentation], data: DataConfig
) -> tuple[Augmentation, ...]:
    """Returns the augmentations with nothing in the place of those that are cached."""
    num_cached = len(before_mixing(data.augmentations))
    nothing = ImageAugmentation(lambda sample, seed: sample)
    return (nothing,) * num_cached + tuple(augmentations[num_cached:])
