"""The ground truth of a whole split as columns of numbers, read from its TFRecord files."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.data.record_checks import checked_objects
from tpudet.detection.data.tfrecord import parse_example
from tpudet.detection.evaluation.mask_jobs import NUM_WORKERS, PngJob, png_job
from tpudet.detection.ops.numpy_masks import Rle
from tpudet.trainkit.errors import listing
from tpudet.trainkit.jobs.worker_pool import run_jobs
from tpudet.trainkit.records import read_records, unconverted


class GroundTruth(NamedTuple):
    """The ground truth of a split: I images, G instances. Boxes in pixels, y1 x1 y2 x2."""

    records: np.ndarray  # [I] int64, record number of each image, in ascending order
    sizes: np.ndarray  # [I, 2] float, height and width
    image_indices: np.ndarray  # [G] int, row of the instance's image in `records`
    boxes: np.ndarray  # [G, 4] float
    classes: np.ndarray  # [G] int, 1-based
    is_crowd: np.ndarray  # [G] bool; detections inside such a region count neither way
    areas: np.ndarray  # [G] float, pixels^2; decides small, medium, large
    source_ids: tuple[str, ...] = ()  # I ids of the images, if they are known
    file_names: tuple[str, ...] = ()  # I, each "" where the records have none
    masks: list[Rle] | None = None  # G COCO RLE of whole images; None where they are not wanted
    lacks_mask: np.ndarray | None = None  # [G] bool, its mask is its box; None: no object


def ignored_as_mask(truth: GroundTruth) -> np.ndarray:
    """[G] bool: the regions in which detections of masks count neither way."""
    return truth.is_crowd if truth.lacks_mask is None else truth.is_crowd | truth.lacks_mask


def load_ground_truth(
    shards: Sequence[str],
    class_names: Sequence[str],
    *,
    with_masks: bool = False,
) -> GroundTruth:
    """Reads the ground truth of every image of a split from its TFRecord files.

    No image is decoded, and memory grows with the number of objects only.

    Args:
        shards: paths, as `find_shards` lists them.
        class_names: C names.
        with_masks: whether masks are read too; they are kept as run lengths.

    Raises:
        ValueError: the files have no image, a class id beyond `class_names`, or objects without
            masks where these are wanted.
    """
    records, source_ids, file_names, sizes, counts = [], [], [], [], []
    columns: list[tuple[np.ndarray, ...]] = []

    def read() -> Iterator[PngJob]:
        for record, source_id, file_name, size, encoded, *instances in _read_truth(
            shards, class_names, with_masks
        ):
            source_ids.append(source_id.decode(errors="replace"))
            file_names.append(file_name.decode(errors="replace"))
            _check_labels(instances[1], source_ids[-1], class_names)
            records.append(record)
            sizes.append(size)
            counts.append(len(instances[1]))
            columns.append(tuple(instances))
            if with_masks:
                _check_number(len(encoded), counts[-1], source_ids[-1])
                yield PngJob(len(records) - 1, encoded.tolist())

    found = dict(run_jobs(png_job, read(), workers=NUM_WORKERS, progress=lambda _: None))
    if not records:
        raise ValueError(f"no image in {', '.join(shards) or 'an empty list of files'}")
    boxes, classes, is_crowd, areas, lacks_mask = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    return GroundTruth(
        records=np.array(records, np.int64),
        sizes=np.array(sizes, np.float32),
        image_indices=np.repeat(np.arange(len(records), dtype=np.int32), counts),
        boxes=boxes,
        classes=classes,
        is_crowd=is_crowd,
        areas=areas,
        source_ids=tuple(source_ids),
        file_names=tuple(file_names),
        masks=_joined(found, sizes, source_ids) if with_masks else None,
        lacks_mask=lacks_mask,
    )


def _joined(
    found: dict[int, list[Rle]], sizes: Sequence[np.ndarray], source_ids: Sequence[str]
) -> list[Rle]:
    """The masks of all images in their order; raises a ValueError where one has another size."""
    masks: list[Rle] = []
    for image, size in enumerate(sizes):
        wrong = [mask["size"] for mask in found[image] if mask["size"] != size.tolist()]
        if wrong:
            raise ValueError(
                f"image {source_ids[image]} is {size.astype(int).tolist()} px high and wide, but "
                f"has a mask of {wrong[0]}: write the TFRecord files again"
            )
        masks += found[image]
    return masks


def _check_number(num_masks: int, num_objects: int, source_id: str) -> None:
    if num_masks != num_objects:
        raise ValueError(
            f"image {source_id} has {num_masks} masks for {num_objects} objects, and the model "
            "predicts masks: write the records of this split with `tpudet make_tfrecords "
            "--include_masks`"
        )


def _read_truth(
    shards: Sequence[str], class_names: Sequence[str], with_masks: bool
) -> Iterator[Any]:
    """Yields the columns of each image.

    They are record, source id, file name, size [2], masks as PNG files ([0] unless wanted), boxes
    in pixels, labels, is_crowd, areas and lacks_mask.
    """

    def parse(record: tf.Tensor, serialized: tf.Tensor) -> tuple[tf.Tensor, ...]:
        example = parse_example(serialized, with_masks=with_masks, class_names=class_names)
        example = checked_objects(example, record, with_size=True)
        key = {"image/filename": tf.io.FixedLenFeature([], tf.string, "")}
        file_name = tf.io.parse_single_example(serialized, key)["image/filename"]
        masks = tf.constant([], tf.string) if example.masks is None else example.masks
        size = tf.cast(tf.stack([example.height, example.width]), tf.float32)
        boxes = example.boxes_normalized * tf.tile(size, [2])
        instances = (boxes, example.labels, example.is_crowd, example.areas, example.lacks_mask)
        return record, example.source_id, file_name, size, masks, *instances

    return read_records(shards).map(unconverted(parse)).prefetch(256).as_numpy_iterator()


def _check_labels(labels: np.ndarray, source_id: str, class_names: Sequence[str]) -> None:
    wrong = labels[(labels < 1) | (labels > len(class_names))]
    if len(wrong):
        raise ValueError(
            f"image {source_id} has class ids {listing(np.unique(wrong))}, but the class list "
            f"ends at {len(class_names)}: classes.csv and the TFRecord files do not belong together"
        )
