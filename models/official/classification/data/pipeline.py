"""TFRecord shards to batches of images and targets, for training and for evaluation."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudet.classification.data.augmentations import build_augmentations
from tpudet.classification.data.config import DataConfig
from tpudet.classification.data.record import parse_example, read_schema
from tpudet.classification.data.sample import pack_sample, unpack_sample
from tpudet.classification.data.sample_cache import cached_sample, find_cache, without_cached
from tpudet.classification.data.samples import (
    build_targets,
    check_windows,
    decode_example,
    evaluation_crop,
    training_sample,
)
from tpudet.classification.types import Batch
from tpudet.trainkit.images.mixed_stream import augmented_stream
from tpudet.trainkit.records import (
    evaluation_share,
    read_records,
    spread_records,
    unconverted,
    with_input_options,
)
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled
from tpudet.trainkit.types import Tensor

NUM_CORES = os.cpu_count() or 1


def train_dataset(
    data: DataConfig,
    records: ShuffledRecords,
    *,
    num_classes: int,
    batch_size: int,
    start_record: int = 0,
    is_multi_label: bool = False,
) -> tf.data.Dataset:
    """Yields augmented batches without end; batches span epochs and nothing is dropped.

    Every batch is a function of (seed, its position in the run): see `read_shuffled` for the order.

    Args:
        data: crop, flip and augmentations, applied in this order.
        records: of the run, and their order.
        num_classes: C. A record with a label beyond it ends the run.
        batch_size: images per batch of this process.
        start_record: records consumed since the beginning of the run, by all processes together.
        is_multi_label: whether an image may have several labels or none, instead of exactly one.

    Returns:
        Dataset of `Batch`.

    Raises:
        UserError: windows and records, or cache and records, do not fit together.
    """
    augmentations = build_augmentations(data.augmentations)
    settings: dict[str, Any] = {
        "data": data,
        "seed": records.seed,
        "num_classes": num_classes,
        "is_multi_label": is_multi_label,
    }
    if data.cache:
        cache = find_cache(data, records.shards, records.records_per_shard)
        records = records._replace(shards=cache.shards, records_per_shard=cache.records_per_shard)
        prepare = functools.partial(cached_sample, is_augmented=cache.is_augmented, **settings)
        if cache.is_augmented:
            augmentations = without_cached(augmentations, data)
    else:
        schema = check_windows(data, read_schema(records.shards))
        prepare = functools.partial(training_sample, schema=schema, **settings)
    is_basic = data.pipeline == "basic"
    samples = augmented_stream(
        functools.partial(read_shuffled, records),
        augmentations,
        start_record=start_record,
        process_count=records.process_count,
        prepare=prepare,
        pack=pack_sample,
        unpack=unpack_sample,
        finish=lambda sample: Batch(sample.image, sample.targets, sample.record),
        canvas_size=data.image_size,
        num_parallel_calls=1 if is_basic else NUM_CORES,
    )
    batches = samples.batch(batch_size, drop_remainder=True)
    return with_input_options(batches if is_basic else batches.prefetch(2))


def eval_dataset(
    data: DataConfig,
    *,
    shards: Sequence[str],
    num_records: int,
    num_classes: int,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
    max_images: int | None = None,
) -> tf.data.Dataset:
    """Yields the centre of every image once, in file order.

    Fillers complete the last batch: record -1, zeros.

    Args:
        data: image size and central crop.
        shards: paths.
        num_records: of all shards.
        num_classes: C.
        batch_size: B, of this process.
        process_index: of this process.
        process_count: see `evaluation_share`.
        max_images: no more than these, see `spread_records`; None: all.

    Returns:
        Dataset of `Batch`.
    """
    schema = check_windows(data, read_schema(shards))
    center = functools.partial(evaluation_crop, image_size=data.image_size, share=data.center_crop)

    def prepare(record: Tensor, serialized: Tensor) -> Batch:
        example = parse_example(serialized, schema)
        image = decode_example(example, data, center)
        return Batch(image, build_targets(example, record, num_classes, may_lack=True), record)

    records, num_wanted = spread_records(
        read_records(shards), num_records=num_records, max_records=max_images
    )
    records, num_fillers = evaluation_share(
        records,
        batch_size=batch_size,
        process_index=process_index,
        process_count=process_count,
        num_records=num_wanted,
    )
    images = records.map(unconverted(prepare), num_parallel_calls=NUM_CORES)
    filler = Batch(
        tf.zeros([*data.image_size, 3], tf.uint8),
        tf.zeros([num_classes]),
        tf.constant(-1, tf.int64),
    )
    fillers = tf.data.Dataset.from_tensors(filler).repeat(num_fillers)
    batches = images.concatenate(fillers).batch(batch_size, drop_remainder=True)
    return with_input_options(batches.prefetch(2))


def read_names(shards: Sequence[str]) -> list[str]:
    """Returns the names or ids of all images, in file order."""
    schema = read_schema(shards)
    names = read_records(shards).map(
        unconverted(lambda _, text: parse_example(text, schema).image_id)
    )
    return [name.decode() for name in names.as_numpy_iterator()]
