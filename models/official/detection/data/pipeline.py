"""TFRecord shards -> batches on the canvas, for training and for evaluation."""

import os
from collections.abc import Sequence

import tensorflow as tf

from detection.data.augment import draw_augmentation, flip_boxes, record_seed
from detection.data.canvas import (
    PlacedImage,
    boxes_to_canvas,
    place_on_canvas,
)
from detection.data.tfrecord import Example, parse_example
from detection.types import Batch, Tensor
from trainkit.records import RECORDS_PER_SHARD_LIMIT, read_records, read_shuffled

NUM_CORES = os.cpu_count() or 1


def train_dataset(
    *,
    shards: Sequence[str],
    records_per_shard: Sequence[int],
    canvas_size: tuple[int, int],
    batch_size: int,
    max_instances: int,
    seed: int,
    start_record: int = 0,
    horizontal_flip: bool = True,
    scale_range: tuple[float, float] = (1.0, 1.0),
    cycle_length: int = 16,
    shuffle_buffer: int | None = None,
    process_index: int = 0,
    process_count: int = 1,
    num_parallel_calls: int = NUM_CORES,
) -> tf.data.Dataset:
    """Gives augmented batches without end; batches span epochs and nothing is dropped.

    Every batch is a function of (seed, its place in the run): see `read_shuffled` for the order
    and `draw_augmentation` for the choices.

    Args:
        shards: paths, as `find_shards` lists them.
        records_per_shard: records of each.
        canvas_size: H and W, multiples of 2**max_level.
        batch_size: images a batch of this process.
        max_instances: N; see `select_instances` for which ones stay when there are more.
        seed: any int64.
        start_record: records consumed since the beginning of the run, by all processes together.
        horizontal_flip: mirror with probability 0.5.
        scale_range: within 0.1..2.0, relative to the largest size that fits into the canvas.
        cycle_length: files open at once.
        shuffle_buffer: records in the shuffle buffer; None: as many as fit into 256 MiB.
        process_index: of this process.
        process_count: processes that share the records, one each in turn; the batches of all of
            them together hold the same records whatever their number. Each reads all files.
        num_parallel_calls: pictures prepared at once.

    Returns:
        Dataset of `Batch`.
    """
    records = read_shuffled(
        shards,
        records_per_shard,
        seed=seed,
        start_record=start_record,
        cycle_length=cycle_length,
        shuffle_buffer=shuffle_buffer,
    )
    if process_count > 1:
        records = records.shard(process_count, process_index)
    height, width = canvas_size

    def prepare(epoch: Tensor, record: Tensor, serialized: Tensor) -> Batch:
        example = _checked(parse_example(serialized), record)
        drawn = draw_augmentation(
            record_seed(seed, epoch, record),
            horizontal_flip=horizontal_flip,
            scale_range=scale_range,
        )
        placed = place_on_canvas(example.encoded, height, width, **drawn._asdict())
        boxes = _boxes_in_pixels(example, placed)
        boxes = tf.cond(
            drawn.flip, lambda: flip_boxes(boxes, placed.original_size[1]), lambda: boxes
        )
        return _one_image(record, example, placed, boxes, canvas_size, max_instances)

    images = records.map(prepare, num_parallel_calls=num_parallel_calls, deterministic=True)
    return _batched(images, canvas_size, batch_size, max_instances)


def eval_dataset(
    *,
    shards: Sequence[str],
    canvas_size: tuple[int, int],
    batch_size: int,
    max_instances: int,
    num_parallel_calls: int = NUM_CORES,
) -> tf.data.Dataset:
    """Gives every picture once, in file order, fitted into the canvas.

    Fillers complete the last batch: record -1, zeros, sizes and scales 1.

    Args:
        shards: paths, as `find_shards` lists them.
        canvas_size: H and W.
        batch_size: B.
        max_instances: N.
        num_parallel_calls: pictures prepared at once.

    Returns:
        Dataset of `Batch`.
    """
    height, width = canvas_size

    def prepare(record: Tensor, serialized: Tensor) -> Batch:
        example = _checked(parse_example(serialized), record)
        placed = place_on_canvas(
            example.encoded, height, width, scale=1.0, position=(0.0, 0.0), flip=False
        )
        boxes = _boxes_in_pixels(example, placed)
        return _one_image(record, example, placed, boxes, canvas_size, max_instances)

    images = read_records(shards).map(prepare, num_parallel_calls=num_parallel_calls)
    fillers = tf.data.Dataset.from_tensors(_filler())
    # With B - 1 fillers behind, the remainder that is dropped holds nothing but fillers.
    padded = images.concatenate(fillers.repeat(batch_size - 1))
    return _batched(padded, canvas_size, batch_size, max_instances)


def select_instances(kept: Tensor, is_crowd: Tensor, max_instances: int) -> Tensor:
    """Returns the rows of at most `max_instances` kept instances, [m].

    Objects come before crowds, each in the order of the record; what exceeds is left out.

    Args:
        kept: [n] bool, whether anything is left of the box.
        is_crowd: [n] bool.
        max_instances: N.
    """
    objects = tf.where(kept & ~is_crowd)[:, 0]
    crowds = tf.where(kept & is_crowd)[:, 0]
    return tf.concat([objects, crowds], axis=0)[:max_instances]


def _checked(example: Example, record: Tensor) -> Example:
    """Stops at a record whose bytes are no picture, in words rather than a bare decoding error."""
    start = tf.strings.substr(example.encoded, 0, 2)
    known = tf.reduce_any(start == [b"\xff\xd8", b"\x89P"])
    where = [
        "The picture of this record is neither JPEG nor PNG. Shard index, record in shard, "
        "source_id (run check_data, write the shard again):",
        record // RECORDS_PER_SHARD_LIMIT,
        record % RECORDS_PER_SHARD_LIMIT,
        example.source_id,
    ]
    with tf.control_dependencies([tf.debugging.Assert(known, where)]):
        return example._replace(encoded=tf.identity(example.encoded))


def _boxes_in_pixels(example: Example, placed: PlacedImage) -> Tensor:
    return example.boxes_normalized * tf.tile(placed.original_size, [2])


def _one_image(
    record: Tensor,
    example: Example,
    placed: PlacedImage,
    boxes: Tensor,
    canvas_size: tuple[int, int],
    max_instances: int,
) -> Batch:
    """Returns a `Batch` without its B and without padding; boxes come in original pixels."""
    boxes, kept = boxes_to_canvas(boxes, placed.scale, placed.offset, *canvas_size)
    rows = select_instances(kept, example.is_crowd, max_instances)
    return Batch(
        images=placed.image,
        boxes=tf.gather(boxes, rows),
        classes=tf.gather(example.labels, rows),
        is_crowd=tf.gather(example.is_crowd, rows),
        records=record,
        original_sizes=placed.original_size,
        scales=placed.scale,
        offsets=placed.offset,
    )


def _filler() -> Batch:
    return Batch(
        images=tf.zeros([0, 0, 3], tf.uint8),
        boxes=tf.zeros([0, 4]),
        classes=tf.zeros([0], tf.int32),
        is_crowd=tf.zeros([0], tf.bool),
        records=tf.constant(-1, tf.int64),
        original_sizes=tf.ones([2]),
        scales=tf.ones([2]),
        offsets=tf.zeros([2]),
    )


def _batched(
    images: tf.data.Dataset, canvas_size: tuple[int, int], batch_size: int, max_instances: int
) -> tf.data.Dataset:
    """Pads to H, W and N with zeros, and batches; what does not fill a batch is dropped."""
    shapes = Batch(
        images=[*canvas_size, 3],
        boxes=[max_instances, 4],
        classes=[max_instances],
        is_crowd=[max_instances],
        records=[],
        original_sizes=[2],
        scales=[2],
        offsets=[2],
    )
    batches = images.padded_batch(batch_size, padded_shapes=shapes, drop_remainder=True)
    options = tf.data.Options()
    options.deterministic = True
    # Pictures are prepared in parallel; splitting one operation over threads would only add cost.
    options.threading.max_intra_op_parallelism = 1
    # Fixed numbers instead: the tuner gained nothing, and its thread held up the end of the
    # process for up to a minute while an iterator was taken down.
    options.autotune.enabled = False
    return batches.prefetch(2).with_options(options)
