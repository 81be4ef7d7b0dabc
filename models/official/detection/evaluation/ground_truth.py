"""The ground truth of a whole split as columns of numbers, read from its TFRecord files."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.data.tfrecord import parse_example
from tpudet.trainkit.errors import listing
from tpudet.trainkit.records import read_records


class GroundTruth(NamedTuple):
    """The ground truth of a split: I images, G instances. Boxes in pixels, y1 x1 y2 x2."""

    records: np.ndarray  # [I] int64, record number of each image, rising
    sizes: np.ndarray  # [I, 2] float, height and width
    image_indices: np.ndarray  # [G] int, row of the instance's image in `records`
    boxes: np.ndarray  # [G, 4] float
    classes: np.ndarray  # [G] int, 1-based
    is_crowd: np.ndarray  # [G] bool; detections inside such a region count neither way
    areas: np.ndarray  # [G] float, pixels^2; decides small, medium, large
    source_ids: tuple[str, ...] = ()  # I names of the images, if they are known


def load_ground_truth(shards: Sequence[str], class_names: Sequence[str]) -> GroundTruth:
    """Reads the ground truth of every image of a split from its TFRecord files.

    No image is decoded, and memory grows with the number of objects only.

    Raises:
        ValueError: the files have no image, or a class id beyond `class_names`.
    """
    records, source_ids, sizes, counts = [], [], [], []
    columns: list[tuple[np.ndarray, ...]] = []
    for record, source_id, size, *instances in _read_truth(shards):
        source_ids.append(source_id.decode(errors="replace"))
        _check_labels(instances[1], source_ids[-1], class_names)
        records.append(record)
        sizes.append(size)
        counts.append(len(instances[1]))
        columns.append(tuple(instances))
    if not records:
        raise ValueError(f"no image in {', '.join(shards) or 'an empty list of files'}")
    boxes, classes, is_crowd, areas = (np.concatenate(c) for c in zip(*columns, strict=True))
    return GroundTruth(
        records=np.array(records, np.int64),
        sizes=np.array(sizes, np.float32),
        image_indices=np.repeat(np.arange(len(records), dtype=np.int32), counts),
        boxes=boxes,
        classes=classes,
        is_crowd=is_crowd,
        areas=areas,
        source_ids=tuple(source_ids),
    )


def _read_truth(shards: Sequence[str]) -> Iterator[Any]:
    """Yields (record, source id, [2] size, boxes in pixels, labels, is_crowd, areas) per image."""

    def parse(record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = parse_example(serialized)
        size = tf.cast(tf.stack([example.height, example.width]), tf.float32)
        boxes = example.boxes_normalized * tf.tile(size, [2])
        instances = (boxes, example.labels, example.is_crowd, example.areas)
        return record, example.source_id, size, *instances

    return read_records(shards).map(parse).prefetch(256).as_numpy_iterator()


def _check_labels(labels: np.ndarray, source_id: str, class_names: Sequence[str]) -> None:
    wrong = labels[(labels < 1) | (labels > len(class_names))]
    if len(wrong):
        raise ValueError(
            f"image {source_id} has class ids {listing(np.unique(wrong))}, but the class list "
            f"ends at {len(class_names)}: classes.csv and the TFRecord files do not belong together"
        )
