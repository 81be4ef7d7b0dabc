"""TFRecord shards to batches of images and targets, for training and for evaluation."""

import functools
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudet.classification.data.augmentations import build_augmentations
from tpudet.classification.data.config import DataConfig
from tpudet.classification.data.record import Example, Schema, find_schema, parse_example
from tpudet.classification.data.sample import Sample, pack_sample, unpack_sample
from tpudet.classification.data.windows import decode_windows
from tpudet.classification.types import Batch
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.crops import Part, center_part, decode_part, random_part
from tpudet.trainkit.images.mixed_stream import augmented_stream, surplus_records
from tpudet.trainkit.images.seeds import fold_seed, record_seed
from tpudet.trainkit.records import (
    RECORDS_PER_SHARD_LIMIT,
    evaluation_share,
    read_records,
    read_shuffled,
)
from tpudet.trainkit.types import Tensor

NUM_CORES = os.cpu_count() or 1

_FLIP = -1  # folded into a record's seed; augmentations count from 0


def train_dataset(
    data: DataConfig,
    *,
    shards: Sequence[str],
    records_per_shard: Sequence[int],
    num_classes: int,
    batch_size: int,
    seed: int,
    start_record: int = 0,
    is_multi_label: bool = False,
    process_index: int = 0,
    process_count: int = 1,
) -> tf.data.Dataset:
    """Yields augmented batches without end; batches span epochs and nothing is dropped.

    Every batch is a function of (seed, its position in the run): see `read_shuffled` for the order.

    Args:
        data: crop, flip and augmentations, applied in this order.
        shards: paths.
        records_per_shard: records of each.
        num_classes: C. A record with a label beyond it ends the run.
        batch_size: images per batch of this process.
        seed: any int64.
        start_record: records consumed since the beginning of the run, by all processes together.
        is_multi_label: whether an image may have several labels or none, instead of exactly one.
        process_index: of this process.
        process_count: processes that share the records, which take turns.

    Returns:
        Dataset of `Batch`.
    """
    augmentations = build_augmentations(data.augmentations)
    surplus = surplus_records(augmentations, start_record // process_count)
    records = read_shuffled(
        shards,
        records_per_shard,
        seed=seed,
        start_record=start_record - surplus * process_count,
        process_index=process_index,
        process_count=process_count,
    )
    is_basic = data.pipeline == "basic"
    samples = augmented_stream(
        records,
        augmentations,
        prepare=functools.partial(
            _training_sample,
            data=data,
            schema=_check_windows(data, read_schema(shards)),
            seed=seed,
            num_classes=num_classes,
            is_multi_label=is_multi_label,
        ),
        pack=pack_sample,
        unpack=unpack_sample,
        finish=lambda sample: Batch(sample.image, sample.targets, sample.record),
        canvas_size=data.image_size,
        num_parallel_calls=1 if is_basic else NUM_CORES,
    )
    batches = samples.skip(surplus).batch(batch_size, drop_remainder=True)
    return _with_options(batches if is_basic else batches.prefetch(2))


def eval_dataset(
    data: DataConfig,
    *,
    shards: Sequence[str],
    num_classes: int,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
    num_records: int | None = None,
) -> tf.data.Dataset:
    """Yields the centre of every image once, in file order.

    Fillers complete the last batch: record -1, zeros.

    Args:
        data: image size and central crop.
        shards: paths.
        num_classes: C.
        batch_size: B, of this process.
        process_index: of this process.
        process_count: see `evaluation_share`.
        num_records: of all shards; needed with several processes.

    Returns:
        Dataset of `Batch`.
    """
    schema = _check_windows(data, read_schema(shards))

    def prepare(record: Tensor, serialized: Tensor) -> Batch:
        example = parse_example(serialized, schema)
        image = _decode(example, data, functools.partial(_center, data))
        return Batch(image, _targets(example, record, num_classes, may_lack=True), record)

    records, num_fillers = evaluation_share(
        read_records(shards),
        batch_size=batch_size,
        process_index=process_index,
        process_count=process_count,
        num_records=num_records,
    )
    images = records.map(prepare, num_parallel_calls=NUM_CORES)
    filler = Batch(
        tf.zeros([*data.image_size, 3], tf.uint8),
        tf.zeros([num_classes]),
        tf.constant(-1, tf.int64),
    )
    fillers = tf.data.Dataset.from_tensors(filler).repeat(num_fillers)
    batches = images.concatenate(fillers).batch(batch_size, drop_remainder=True)
    return _with_options(batches.prefetch(2))


def read_schema(shards: Sequence[str]) -> Schema:
    """Tells the schema of a set by its first record."""
    for path in shards:
        for serialized in tf.data.TFRecordDataset(path).take(1).as_numpy_iterator():
            return find_schema(bytes(serialized), path)
    raise ValueError(f"{shards[0]} and its {len(shards)} shards hold no record")


def read_names(shards: Sequence[str]) -> list[str]:
    """Returns the names or ids of all images, in file order."""
    schema = read_schema(shards)
    names = read_records(shards).map(lambda _, text: parse_example(text, schema).image_id)
    return [name.decode() for name in names.as_numpy_iterator()]


def decode_center(encoded: Tensor, image_size: tuple[int, int], share: float) -> Tensor:
    """Decodes the centre of an image, [H, W, 3] uint8, as evaluation and export do.

    Args:
        encoded: [] string.
        image_size: H and W.
        share: side of the part over that of the largest that fits, 0..1.
    """
    choose = functools.partial(center_part, share=share, aspect=image_size[1] / image_size[0])
    return decode_part(encoded, choose, *image_size)


def _center(data: DataConfig, size: Tensor) -> Part:
    return center_part(size, data.center_crop, aspect=data.image_size[1] / data.image_size[0])


def _decode(example: Example, data: DataConfig, choose: Callable[[Tensor], Part]) -> Tensor:
    """Decodes a part of an image or, through the windows, of a CT slice, [H, W, 3] uint8."""
    if example.rescale is None:
        return decode_part(example.encoded, choose, *data.image_size)
    return decode_windows(
        example.encoded, example.rescale, choose, *data.image_size, windows=data.windows
    )


def _check_windows(data: DataConfig, schema: Schema) -> Schema:
    """Raises UserError if CT slices have no windows, or if windows have no CT slices."""
    if (schema == "ct") != bool(data.windows):
        raise UserError(
            f"data.windows has {len(data.windows)} windows, and the records of {data.directory} "
            f"are {'CT slices, which need three' if schema == 'ct' else 'no CT slices'}"
        )
    return schema


def _training_sample(
    epoch: Tensor,
    record: Tensor,
    serialized: Tensor,
    *,
    data: DataConfig,
    schema: Schema,
    seed: int,
    num_classes: int,
    is_multi_label: bool,
) -> Sample:
    """Decodes the part of an image that is drawn from (seed, epoch, record)."""
    example = parse_example(serialized, schema)
    targets = _targets(example, record, num_classes, may_lack=is_multi_label)
    stateless_seed = record_seed(seed, epoch, record)

    def choose(size: Tensor) -> Part:
        center = _center(data, size)
        if data.random_crop is None:
            return center
        return random_part(
            size,
            stateless_seed,
            area_range=data.random_crop.area_range,
            aspect_range=data.random_crop.aspect_range,
            otherwise=center,
        )

    image = _decode(example, data, choose)
    if data.horizontal_flip:
        draw = tf.random.stateless_uniform([], fold_seed(stateless_seed, _FLIP), alg="philox")
        image = tf.cond(draw < 0.5, lambda: tf.reverse(image, [1]), lambda: image)
    return Sample(image=image, targets=targets, seed=stateless_seed, record=record)


def _targets(example: Example, record: Tensor, num_classes: int, *, may_lack: bool) -> Tensor:
    """Returns 1 for each label, [C] float32, after checks that name the record.

    Args:
        example: its labels.
        record: [] int64, its number.
        num_classes: C.
        may_lack: whether there may be another number of labels than one.
    """
    labels = example.labels
    where = [
        "Labels, shard index, record in shard, image:",
        labels,
        record // RECORDS_PER_SHARD_LIMIT,
        record % RECORDS_PER_SHARD_LIMIT,
        example.image_id,
    ]
    known = tf.reduce_all((labels >= 1) & (labels <= num_classes))
    fault = f"A label of this record is not among the {num_classes} rows of the class list."
    checks = [tf.debugging.Assert(known, [fault, *where])]
    if not may_lack:
        fault = "This record has not exactly one label, as model.loss.kind softmax needs."
        checks.append(tf.debugging.Assert(tf.size(labels) == 1, [fault, *where]))
    with tf.control_dependencies(checks):
        rows = tf.one_hot(labels - 1, num_classes)
    return tf.minimum(tf.reduce_sum(rows, axis=0), 1.0)


def _with_options(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Images are prepared in parallel; splitting one operation over threads would only add cost.
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False  # see detection's pipeline: no gain, and a slow end
    return batches.with_options(options)
