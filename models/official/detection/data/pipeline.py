"""TFRecord shards to batches on the canvas, for training and for evaluation."""

import functools
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudet.detection.data.augmentations.build import build_augmentations, needs_masks
from tpudet.detection.data.boxes import boxes_to_canvas, flip_boxes, has_area
from tpudet.detection.data.config import DataConfig
from tpudet.detection.data.masks import pack_masks, placed_masks, require_masks
from tpudet.detection.data.record_checks import checked_example
from tpudet.detection.data.resize import build_resize
from tpudet.detection.data.sample import Sample, pack_sample, select_instances, unpack_sample
from tpudet.detection.data.tfrecord import Example, parse_example
from tpudet.detection.data.turns import canvas_before, draw_turn, turn_sample
from tpudet.detection.types import Batch
from tpudet.trainkit.images.canvas import PlacedImage, Resize, fit, place_on_canvas
from tpudet.trainkit.images.mixed_stream import Augmentation, augmented_stream
from tpudet.trainkit.images.seeds import draw_placement, fold_seed, record_seed
from tpudet.trainkit.records import (
    evaluation_share,
    read_records,
    unconverted,
    with_input_options,
)
from tpudet.trainkit.shuffled_records import ShuffledRecords, read_shuffled
from tpudet.trainkit.types import Tensor

NUM_CORES = os.cpu_count() or 1

# Folded into a sample's seed for `select_instances`: among the instances of a record, and of the
# image that augmentations made. Augmentations count from 0.
_RECORD_SELECTION, _SELECTION = -2, -1
_TURN = -3  # for `draw_turn`


def train_dataset(
    data: DataConfig,
    records: ShuffledRecords,
    *,
    batch_size: int,
    start_record: int = 0,
    num_classes: int | None = None,
    class_names: Sequence[str] = (),
    with_masks: bool = False,
    augmentations: Sequence[Augmentation] | None = None,
    num_parallel_calls: int = NUM_CORES,
) -> tf.data.Dataset:
    """Yields augmented `Batch`es without end; they span epochs and nothing is dropped.

    Every batch is a function of (seed, its position in the run): see `read_shuffled` for the order,
    `draw_placement` for the random choices and `augmented_stream` for the augmentations, which are
    applied to the scaled, cropped and mirrored image before it is padded.

    Args:
        data: canvas, flip, scales, augmentations and `max_instances` (N, see `select_instances`).
            So many instances are chosen of each record, before any mask is decoded, and again of
            a mixed image.
        records: of the run, and their order; mixed images depend on the number of processes.
        batch_size: images per batch of this process.
        start_record: records consumed since the beginning of the run, by all processes together.
        num_classes: C. A record with a label beyond it ends the run: a GPU would train on it as if
            it had no class. None checks nothing.
        class_names: C names, for records that have no class ids.
        with_masks: whether batches carry masks; the canvas is then a multiple of 8 wide.
        augmentations: used instead of those of `data`.
        num_parallel_calls: images prepared at once.

    Raises:
        UserError: masks are needed, and no record searched has any.
    """
    if augmentations is None:
        augmentations = build_augmentations(data)
    if with_masks or needs_masks(data):
        require_masks(records.shards, needed_by="the model" if with_masks else "copy_paste")
    images = augmented_stream(
        functools.partial(read_shuffled, records),
        augmentations,
        start_record=start_record,
        process_count=records.process_count,
        prepare=functools.partial(
            _training_sample,
            data=data,
            seed=records.seed,
            num_classes=num_classes,
            class_names=class_names,
            with_masks=with_masks,
        ),
        pack=pack_sample,
        unpack=unpack_sample,
        finish=lambda sample: _one_image(sample, data.max_instances, with_masks=with_masks),
        canvas_size=data.canvas_size,
        num_parallel_calls=num_parallel_calls,
    )
    return _batched(images, data.canvas_size, batch_size, data.max_instances)


def _training_sample(
    epoch: Tensor,
    record: Tensor,
    serialized: Tensor,
    *,
    data: DataConfig,
    seed: int,
    num_classes: int | None,
    class_names: Sequence[str],
    with_masks: bool,
) -> Sample:
    """Decodes a record and places its image as drawn from (seed, epoch, record)."""
    reads_masks = with_masks or needs_masks(data)
    example = parse_example(serialized, with_masks=reads_masks, class_names=class_names)
    example = checked_example(example, record, num_classes)
    stateless_seed = record_seed(seed, epoch, record)
    drawn = draw_placement(
        stateless_seed, horizontal_flip=data.horizontal_flip, scale_range=data.scale_range
    )
    turn = draw_turn(
        fold_seed(stateless_seed, _TURN),
        vertical_flip=data.vertical_flip,
        quarter_turns=data.quarter_turns,
    )
    turns = data.vertical_flip or data.quarter_turns
    canvas_size = canvas_before(turn, data.canvas_size) if turns else data.canvas_size
    placed = place_on_canvas(
        example.encoded, *canvas_size, **drawn._asdict(), resize=build_resize(data.resize)
    )
    sample = _to_sample(
        record,
        example,
        placed,
        drawn.flip,
        stateless_seed,
        canvas_size=canvas_size,
        max_instances=data.max_instances,
        with_masks=with_masks,
    )
    return turn_sample(sample, turn) if turns else sample


def eval_dataset(
    *,
    shards: Sequence[str],
    canvas_size: tuple[int, int],
    resize: Resize = fit,
    batch_size: int,
    max_instances: int,
    class_names: Sequence[str] = (),
    with_masks: bool = False,
    process_index: int = 0,
    process_count: int = 1,
    num_records: int | None = None,
    num_parallel_calls: int = NUM_CORES,
) -> tf.data.Dataset:
    """Yields every image once, in file order, on the canvas: a dataset of `Batch`.

    Fillers complete the last batch: record -1, zeros, sizes and scales 1.

    Args:
        shards: paths, as `find_shards` lists them.
        canvas_size: H and W.
        resize: as of `place_on_canvas`.
        batch_size: B, of this process.
        max_instances: N.
        class_names: C names, for records that have no class ids.
        with_masks: whether batches carry masks; all 0 where a record has none.
        process_index: of this process.
        process_count: see `evaluation_share`.
        num_records: of all shards; needed with several processes.
        num_parallel_calls: images prepared at once.
    """

    def prepare(record: Tensor, serialized: Tensor) -> dict[str, Tensor]:
        example = parse_example(serialized, with_masks=with_masks, class_names=class_names)
        example = checked_example(example, record)
        placed = place_on_canvas(
            example.encoded, *canvas_size, scale=1.0, position=(0.0, 0.0), flip=False, resize=resize
        )
        sample = _to_sample(
            record,
            example,
            placed,
            False,
            tf.zeros([2], tf.int64),  # no use is made of it
            canvas_size=canvas_size,
            max_instances=max_instances,
            with_masks=with_masks,
        )
        return _one_image(sample, max_instances, with_masks=with_masks)

    records, num_fillers = evaluation_share(
        read_records(shards),
        batch_size=batch_size,
        process_index=process_index,
        process_count=process_count,
        num_records=num_records,
    )
    images = records.map(unconverted(prepare), num_parallel_calls=num_parallel_calls)
    fillers = tf.data.Dataset.from_tensors(_filler(with_masks=with_masks)).repeat(num_fillers)
    return _batched(images.concatenate(fillers), canvas_size, batch_size, max_instances)


def _to_sample(
    record: Tensor,
    example: Example,
    placed: PlacedImage,
    flip: Tensor | bool,
    seed: Tensor,
    *,
    canvas_size: tuple[int | Tensor, int | Tensor],
    max_instances: int,
    with_masks: bool,
) -> Sample:
    """Joins the placed image of a record with its objects, moved to where it was placed.

    Chosen before masks are decoded, because an image of 400 nuclei would take 160 MB of them.

    An object whose mask nobody drew is a region to ignore `with_masks`, in a batch for a model that
    learns them; for other models it is an object, whose mask is empty, so that none pastes it.
    """
    flip = tf.convert_to_tensor(flip)
    boxes = example.boxes_normalized * tf.tile(placed.original_size, [2])
    boxes = tf.cond(flip, lambda: flip_boxes(boxes, placed.original_size[1]), lambda: boxes)
    boxes = boxes_to_canvas(boxes, placed.scale, placed.offset, *canvas_size)
    chosen_by = fold_seed(seed, _RECORD_SELECTION)
    is_crowd = example.is_crowd | example.lacks_mask if with_masks else example.is_crowd
    rows = select_instances(has_area(boxes), is_crowd, max_instances, chosen_by)
    masks = None
    if example.masks is not None:
        masks = placed_masks(example.masks, tf.size(example.labels), rows, placed, flip)
        if not with_masks:
            is_drawn = ~tf.gather(example.lacks_mask, rows)
            masks *= tf.cast(is_drawn, tf.uint8)[:, tf.newaxis, tf.newaxis]
    return Sample(
        image=placed.image,
        boxes=tf.gather(boxes, rows),
        classes=tf.gather(example.labels, rows),
        is_crowd=tf.gather(is_crowd, rows),
        masks=masks,
        seed=seed,
        record=record,
        original_size=placed.original_size,
        scale=placed.scale,
        offset=placed.offset,
    )


def _one_image(sample: Sample, max_instances: int, *, with_masks: bool) -> dict[str, Tensor]:
    """Returns the fields of a `Batch` without their B and without padding."""
    seed = fold_seed(sample.seed, _SELECTION)
    rows = select_instances(has_area(sample.boxes), sample.is_crowd, max_instances, seed)
    fields = {
        "images": sample.image,
        "boxes": tf.gather(sample.boxes, rows),
        "classes": tf.gather(sample.classes, rows),
        "is_crowd": tf.gather(sample.is_crowd, rows),
        "records": sample.record,
        "original_sizes": sample.original_size,
        "scales": sample.scale,
        "offsets": sample.offset,
    }
    return fields | ({"masks": pack_masks(tf.gather(sample.masks, rows))} if with_masks else {})


def _filler(*, with_masks: bool) -> dict[str, Tensor]:
    fields = {
        "images": tf.zeros([0, 0, 3], tf.uint8),
        "boxes": tf.zeros([0, 4]),
        "classes": tf.zeros([0], tf.int32),
        "is_crowd": tf.zeros([0], tf.bool),
        "records": tf.constant(-1, tf.int64),
        "original_sizes": tf.ones([2]),
        "scales": tf.ones([2]),
        "offsets": tf.zeros([2]),
    }
    return fields | ({"masks": tf.zeros([0, 0, 0], tf.uint8)} if with_masks else {})


def _batched(
    images: tf.data.Dataset, canvas_size: tuple[int, int], batch_size: int, max_instances: int
) -> tf.data.Dataset:
    """Pads to H, W and N with zeros, and batches; what does not fill a batch is dropped."""
    height, width = canvas_size
    shapes = {
        "images": [*canvas_size, 3],
        "boxes": [max_instances, 4],
        "classes": [max_instances],
        "is_crowd": [max_instances],
        "records": [],
        "original_sizes": [2],
        "scales": [2],
        "offsets": [2],
        "masks": [max_instances, height, width // 8],
    }
    spec: Any = images.element_spec
    if "masks" in spec and width % 8:
        raise ValueError(f"Masks take eight pixels per byte, but the canvas is {width} wide.")
    padded = {name: shapes[name] for name in spec}
    batches = images.padded_batch(batch_size, padded_shapes=padded, drop_remainder=True)
    # Only now: `padded_batch` does not take None, which stands for masks that are not there.
    batches = batches.map(unconverted(lambda fields: Batch(**fields)))
    return with_input_options(batches.prefetch(2))
