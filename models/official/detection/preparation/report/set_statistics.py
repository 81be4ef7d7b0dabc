"""Statistics of a prepared set, counted from its TFRecords without decoding images."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.data.record_checks import checked_objects
from tpudet.detection.data.tfrecord import Example, parse_example
from tpudet.detection.preparation.records.prepared_set import (
    PreparedSet,
    PreparedSplit,
    read_prepared_set,
)
from tpudet.detection.preparation.sources.annotations import distinct_pairs
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.input_errors import check_of_pipeline, damaged_files
from tpudet.trainkit.records import (
    FRAME_BYTES,
    RECORDS_PER_SHARD_LIMIT,
    read_record,
    read_records,
    unconverted,
)

# COCO's size classes by area in pixels^2: small below the first, large from the second.
SIZE_BOUNDS = (32**2, 96**2)

_BATCH = 512  # records per batch of columns, without the images
_PARALLEL_CALLS = 2  # enough for parsing to keep up with the reading thread
_NUM_HASHES = 2**63 - 1


class SplitColumns(NamedTuple):
    """A split as columns: I images in file order, G boxes in the order of their images."""

    names: np.ndarray  # [I] bytes, of the files; source ids where records have none
    contents: np.ndarray  # [I] int64, a hash of the image file
    sizes: np.ndarray  # [I, 2] int32, height and width in pixels
    shards: np.ndarray  # [I] int64, row of `PreparedSplit.shards`
    offsets: np.ndarray  # [I] int64, start of the record in its file, in bytes
    lengths: np.ndarray  # [I] int32, of the serialized example in bytes
    box_images: np.ndarray  # [G] int64, row of the box's image
    class_ids: np.ndarray  # [G] int32, 1-based
    boxes_normalized: np.ndarray  # [G, 4] float32, y1 x1 y2 x2 in 0..1
    is_crowd: np.ndarray  # [G] bool
    areas: np.ndarray  # [G] float32, pixels^2; of the mask if known


def read_columns(
    split: PreparedSplit, classes: tuple[ClassEntry, ...], progress: Callable[[int], Any]
) -> SplitColumns:
    """Reads every record of a split once and checks the counts against the manifest.

    Takes about 40 bytes of memory per box and 160 per image.

    Args:
        split: the split.
        classes: of the part.
        progress: called with the number of images read since the last call.

    Raises:
        UserError: a shard is damaged (it is named), a record is not a detection record, its columns
            are not those of its objects, or the shards have other images or boxes than the
            manifest and the class list say.
    """
    batches = []
    try:
        for batch in _read_batches(split.shards):
            batches.append(batch)
            progress(len(batch[0]))
    except tf.errors.DataLossError as error:
        damaged = next(damaged_files(split.shards), split.manifest_path)
        raise UserError(
            f"{damaged} is damaged: the checksum of a record is wrong, or its end is missing. "
            "Write the set again with --overwrite."
        ) from error
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:  # that of a quotation
        if said := check_of_pipeline(error):
            raise UserError(f"{split.manifest_path}: {said}") from error
        raise UserError(
            f"The shards of {split.manifest_path} have a record that is not a detection record: a "
            "key of detection/data/tfrecord.py is missing, or it is not an example at all. Write "
            "the set again with --overwrite."
        ) from error
    if not batches:
        raise UserError(f"{split.manifest_path} describes a split without images.")
    records, lengths, contents, sizes, names, counts, boxes, class_ids, is_crowd, areas = (
        np.concatenate(column) for column in zip(*batches, strict=True)
    )
    shards = records // RECORDS_PER_SHARD_LIMIT
    columns = SplitColumns(
        names=names,
        contents=contents,
        sizes=sizes,
        shards=shards,
        offsets=_offsets(shards, lengths),
        lengths=lengths,
        box_images=np.repeat(np.arange(len(records)), counts),
        class_ids=class_ids,
        boxes_normalized=boxes,
        is_crowd=is_crowd,
        areas=areas,
    )
    _check_against_manifest(columns, split, classes)
    return columns


def _read_batches(shards: tuple[str, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    def parse(record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = checked_objects(parse_example(serialized), record, with_size=True)
        size = tf.cast(tf.stack([example.height, example.width]), tf.int32)
        length = tf.strings.length(serialized)
        count = tf.size(example.labels)
        boxes = (example.boxes_normalized, example.labels, example.is_crowd, example.areas)
        content = tf.strings.to_hash_bucket_fast(example.encoded, _NUM_HASHES)
        # Not the id: annotations of each split may count their images from 1.
        key = {"image/filename": tf.io.FixedLenFeature([], tf.string, "")}
        name = tf.io.parse_single_example(serialized, key)["image/filename"]
        name = tf.where(tf.strings.length(name) > 0, name, example.source_id)
        return record, length, content, size, name, count, *boxes

    parsed = read_records(shards).map(unconverted(parse), num_parallel_calls=_PARALLEL_CALLS)
    for batch in parsed.ragged_batch(_BATCH).prefetch(2):
        yield tuple(
            np.asarray(column.flat_values if isinstance(column, tf.RaggedTensor) else column)
            for column in batch
        )


def _offsets(shards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    framed = lengths.astype(np.int64) + FRAME_BYTES
    starts = np.cumsum(framed) - framed
    first_rows = np.searchsorted(shards, shards)
    return starts - starts[first_rows]


def read_example(split: PreparedSplit, columns: SplitColumns, row: int) -> Example:
    """Reads the record of one image, without those before it."""
    start, length = int(columns.offsets[row]), int(columns.lengths[row])
    path = split.shards[columns.shards[row]]
    return parse_example(read_record(path, start, start + length + FRAME_BYTES), with_masks=True)


def _check_against_manifest(
    columns: SplitColumns, split: PreparedSplit, classes: tuple[ClassEntry, ...]
) -> None:
    ids = columns.class_ids
    wrong = np.unique(ids[(ids < 1) | (ids > len(classes))])
    if len(wrong):
        raise UserError(
            f"The records of {split.manifest_path} have the class ids {wrong[:5].tolist()}, but "
            f"classes.csv ends at {len(classes)}: they do not belong together."
        )
    boxes = class_counts(columns, len(classes)).boxes
    told = split.manifest["boxes_per_class"]
    facts = [("images", len(columns.names), split.manifest["images"])]
    facts += [("boxes", len(ids), split.manifest["boxes"])]
    facts += [
        (f"boxes of the class {entry.name}", int(count), told.get(entry.name, 0))
        for entry, count in zip(classes, boxes, strict=True)
    ]
    differing = [f"{found} {what}, not {said}" for what, found, said in facts if found != said]
    if differing:
        raise UserError(
            f"The shards of {split.manifest_path} hold {'; '.join(differing[:5])} as it says. "
            "They belong to another run: write the set again with --overwrite."
        )


class ClassCounts(NamedTuple):
    """The number of images and boxes of each of C classes."""

    images: np.ndarray  # [C] int64, images with at least one box of it
    boxes: np.ndarray  # [C] int64


def class_counts(columns: SplitColumns, num_classes: int) -> ClassCounts:
    """Counts images and boxes of every class; a crowd region counts as a box."""
    images = np.bincount(
        distinct_pairs(columns.box_images, columns.class_ids)[1], minlength=num_classes + 1
    )
    boxes = np.bincount(columns.class_ids, minlength=num_classes + 1)
    return ClassCounts(images[1:], boxes[1:])


def boxes_per_image(columns: SplitColumns) -> np.ndarray:
    """The number of boxes of every image, [I]."""
    return np.bincount(columns.box_images, minlength=len(columns.names))


def relative_sides(columns: SplitColumns) -> np.ndarray:
    """Square root of each box's share of the image area, [G] in 0..1."""
    y1, x1, y2, x2 = columns.boxes_normalized.T
    return np.sqrt((y2 - y1) * (x2 - x1))


def aspect_ratios(columns: SplitColumns) -> np.ndarray:
    """Width / height of every box in pixels, [G]."""
    heights, widths = columns.sizes[columns.box_images].T
    y1, x1, y2, x2 = columns.boxes_normalized.T
    return (x2 - x1) * widths / ((y2 - y1) * heights)


def size_groups(columns: SplitColumns) -> np.ndarray:
    """Number of small, medium and large boxes in COCO's sense, [3]."""
    return np.bincount(np.digitize(columns.areas, SIZE_BOUNDS), minlength=3)


class SetNumbers(NamedTuple):
    """A prepared set with its columns and counts, both in the order of its splits."""

    prepared: PreparedSet
    columns: tuple[SplitColumns, ...]
    counts: tuple[ClassCounts, ...]

    @property
    def split_names(self) -> list[str]:
        """Names of the splits."""
        return [split.name for split in self.prepared.splits]

    @property
    def boxes(self) -> np.ndarray:
        """Boxes of each class in all splits, [C]."""
        return np.sum([counts.boxes for counts in self.counts], axis=0)

    @property
    def lacking(self) -> np.ndarray:
        """Whether a class has no boxes in a split, [splits, C] bool."""
        return np.stack([counts.boxes == 0 for counts in self.counts])


def read_numbers(directory: str) -> SetNumbers:
    """Reads a prepared set and counts it, with a progress bar over the images.

    Raises:
        UserError: it is missing or incomplete, or differs from its manifests.
    """
    prepared = read_prepared_set(directory)
    total = sum(split.manifest["images"] for split in prepared.splits)
    columns = []
    with tqdm(total=total, unit="image", desc=prepared.part) as bar:
        for split in prepared.splits:
            columns.append(read_columns(split, prepared.classes, bar.update))
    counts = [class_counts(column, len(prepared.classes)) for column in columns]
    return SetNumbers(prepared, tuple(columns), tuple(counts))
