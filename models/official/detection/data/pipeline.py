"""TFRecord shards -> batches on the canvas, for training and for evaluation."""

import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from tpudet.detection.data.boxes import boxes_to_canvas, flip_boxes, has_area
from tpudet.detection.data.masks import placed_masks
from tpudet.detection.data.sample import Augmentation, MixingAugmentation, Sample
from tpudet.detection.data.tfrecord import Example, parse_example, parse_masks
from tpudet.detection.types import Batch
from tpudet.trainkit.images.canvas import PlacedImage, place_on_canvas
from tpudet.trainkit.images.mixed_stream import augmented_stream, surplus_records
from tpudet.trainkit.images.seeds import draw_augmentation, fold_seed, record_seed
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, read_records, read_shuffled
from tpudet.trainkit.types import Tensor

NUM_CORES = os.cpu_count() or 1

# For masks: a share of 1 % of the pictures that have some is missed once in 20,000 times.
_RECORDS_SEARCHED = 1000
_SHARDS_SEARCHED = 100
_SELECTION = -1  # folds a sample's seed into that of `select_instances`; augmentations count from 0


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
    augmentations: Sequence[Augmentation] = (),
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
        scale_range: within 0.1..2.0, relative to the largest size that fits into the canvas;
            (0.1, 2.0) is the large-scale jitter of arXiv 2012.07177.
        augmentations: applied in this order to the picture that is scaled, cropped and mirrored
            but not padded. The seed of each is the record's, folded with its place in the list.
            Partners of a mixing one are other pictures of the same process's stream, changed by
            what stands before it in the list; so with several processes mixed pictures depend on
            their number, and the records do not.
        cycle_length: files open at once.
        shuffle_buffer: records in the shuffle buffer; None: as many as fit into 256 MiB.
        process_index: of this process.
        process_count: processes that share the records, one each in turn; the batches of all of
            them together hold the same records whatever their number. Each reads all files.
        num_parallel_calls: pictures prepared at once.

    Returns:
        Dataset of `Batch`.

    Raises:
        ValueError: an augmentation needs masks, and no record looked at has any.
    """
    with_masks = any(isinstance(a, MixingAugmentation) and a.needs_masks for a in augmentations)
    if with_masks:
        _check_masks(shards)
    surplus = surplus_records(augmentations, start_record // process_count)
    records = read_shuffled(
        shards,
        records_per_shard,
        seed=seed,
        start_record=start_record - surplus * process_count,
        cycle_length=cycle_length,
        shuffle_buffer=shuffle_buffer,
    )
    if process_count > 1:
        records = records.shard(process_count, process_index)
    images = augmented_stream(
        records,
        augmentations,
        prepare=functools.partial(
            _training_sample,
            seed=seed,
            canvas_size=canvas_size,
            horizontal_flip=horizontal_flip,
            scale_range=scale_range,
            with_masks=with_masks,
        ),
        finish=lambda sample: _one_image(sample, max_instances),
        canvas_size=canvas_size,
        num_parallel_calls=num_parallel_calls,
    )
    return _batched(images.skip(surplus), canvas_size, batch_size, max_instances)


def _training_sample(
    epoch: Tensor,
    record: Tensor,
    serialized: Tensor,
    *,
    seed: int,
    canvas_size: tuple[int, int],
    horizontal_flip: bool,
    scale_range: tuple[float, float],
    with_masks: bool,
) -> Sample:
    """Decodes a record and places its picture as drawn from (seed, epoch, record)."""
    example = _checked(parse_example(serialized), record)
    stateless_seed = record_seed(seed, epoch, record)
    drawn = draw_augmentation(
        stateless_seed, horizontal_flip=horizontal_flip, scale_range=scale_range
    )
    placed = place_on_canvas(example.encoded, *canvas_size, **drawn._asdict())
    boxes = _boxes_in_pixels(example, placed)
    boxes = tf.cond(drawn.flip, lambda: flip_boxes(boxes, placed.original_size[1]), lambda: boxes)
    sample = _to_sample(record, example, placed, boxes, canvas_size, stateless_seed)
    if not with_masks:
        return sample
    count = tf.size(example.labels)
    return sample._replace(masks=placed_masks(parse_masks(serialized), count, placed, drawn.flip))


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
        unused_seed = tf.zeros([2], tf.int64)
        sample = _to_sample(record, example, placed, boxes, canvas_size, unused_seed)
        return _one_image(sample, max_instances)

    images = read_records(shards).map(prepare, num_parallel_calls=num_parallel_calls)
    fillers = tf.data.Dataset.from_tensors(_filler())
    # With B - 1 fillers behind, the remainder that is dropped holds nothing but fillers.
    padded = images.concatenate(fillers.repeat(batch_size - 1))
    return _batched(padded, canvas_size, batch_size, max_instances)


def select_instances(kept: Tensor, is_crowd: Tensor, max_instances: int, seed: Tensor) -> Tensor:
    """Returns the rows of at most `max_instances` kept instances, [m].

    Objects come before crowds, each in their order. Where there are too many, chance decides which
    are left out: the last ones of a mosaic are those of its lower right picture.

    Args:
        kept: [n] bool, whether anything is left of the box.
        is_crowd: [n] bool.
        max_instances: N.
        seed: [2], of which the choice is a function.
    """
    draws = tf.random.stateless_uniform(tf.shape(kept), seed, alg="philox")
    kinds = tf.where(kept & ~is_crowd, 0.0, tf.where(kept, 1.0, 2.0))
    rank = tf.argsort(tf.argsort(kinds + draws, stable=True))
    chosen = kept & (rank < max_instances)
    objects, crowds = (tf.where(chosen & kind)[:, 0] for kind in (~is_crowd, is_crowd))
    return tf.concat([objects, crowds], axis=0)


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


def _check_masks(shards: Sequence[str]) -> None:
    """Looks for masks, all over the data, where an augmentation would do nothing without them."""
    some = shards[:: -(-len(shards) // _SHARDS_SEARCHED)]
    count = -(-_RECORDS_SEARCHED // len(some))
    found = (parse_masks(text) for shard in some for _, text in read_records([shard]).take(count))
    if not any(tf.size(masks) > 0 for masks in found):
        raise ValueError(
            f"copy_paste needs masks, and none of the first {count} records of each of {len(some)} "
            f"shards, from {shards[0]} on, has an image/object/mask. Write the records with "
            "make_tfrecords.py --include_masks, or take copy_paste out of data.augmentations."
        )


def _boxes_in_pixels(example: Example, placed: PlacedImage) -> Tensor:
    return example.boxes_normalized * tf.tile(placed.original_size, [2])


def _to_sample(
    record: Tensor,
    example: Example,
    placed: PlacedImage,
    boxes: Tensor,
    canvas_size: tuple[int, int],
    seed: Tensor,
) -> Sample:
    """Joins what is known of a picture; boxes come in original pixels."""
    return Sample(
        image=placed.image,
        boxes=boxes_to_canvas(boxes, placed.scale, placed.offset, *canvas_size),
        classes=example.labels,
        is_crowd=example.is_crowd,
        masks=None,
        seed=seed,
        record=record,
        original_size=placed.original_size,
        scale=placed.scale,
        offset=placed.offset,
    )


def _one_image(sample: Sample, max_instances: int) -> Batch:
    """Returns a `Batch` without its B and without padding."""
    seed = fold_seed(sample.seed, _SELECTION)
    rows = select_instances(has_area(sample.boxes), sample.is_crowd, max_instances, seed)
    return Batch(
        images=sample.image,
        boxes=tf.gather(sample.boxes, rows),
        classes=tf.gather(sample.classes, rows),
        is_crowd=tf.gather(sample.is_crowd, rows),
        records=sample.record,
        original_sizes=sample.original_size,
        scales=sample.scale,
        offsets=sample.offset,
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
