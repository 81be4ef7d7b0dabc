"""Draws training images as the network gets them, with their boxes and class names."""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.ops.drawing import Panel, draw_panels
from tpudet.detection.types import Batch
from tpudet.trainkit.errors import count_of
from tpudet.trainkit.pages.drawing import class_colour, image_grid
from tpudet.trainkit.records import RECORDS_PER_SHARD_LIMIT, read_record, record_offsets
from tpudet.trainkit.types import Tensor


def draw_augmented(
    batches: Iterable[Batch],
    *,
    class_names: Sequence[str],
    num_images: int,
    shards: Sequence[str],
) -> np.ndarray:
    """Draws the first images of a data set, [h, w, 3] uint8 RGB, in a nearly square grid.

    Args:
        batches: NumPy arrays; no more batches are read than needed.
        class_names: C names.
        num_images: at least 1.
        shards: of the split, in which the names of the images are looked up.
    """
    columns = ([field for field in batch if field is not None] for batch in batches)
    rows = (Batch(*fields) for batch in columns for fields in zip(*batch, strict=True))
    first = itertools.islice(rows, num_images)
    shown = tqdm(first, "drawing images", num_images, leave=False, disable=None)
    images = [draw_row(row, class_names, image_name(shards, int(row.records))) for row in shown]
    return image_grid(images, columns=math.ceil(math.sqrt(num_images)))


def image_name(shards: Sequence[str], record: int) -> str:
    """Returns the file name of a record's image, else its id, else where it stands."""
    shard, place = divmod(record, RECORDS_PER_SHARD_LIMIT)
    start, end = record_offsets(shards[shard])[place : place + 2].tolist()
    serialized = read_record(shards[shard], start, end)
    keys = ("image/filename", "image/source_id")
    parsed: dict[str, Tensor] = tf.io.parse_single_example(
        serialized, {key: tf.io.FixedLenFeature([], tf.string, "") for key in keys}
    )
    names = (parsed[key].numpy().decode(errors="replace") for key in keys)
    return next(filter(None, names), f"shard {shard}, record {place}")


def draw_row(row: Batch, class_names: Sequence[str], name: str) -> np.ndarray:
    """Draws one image of a batch with its boxes and masks; crowds are labelled as such.

    Args:
        row: NumPy arrays without their B.
        class_names: C names.
        name: of the image.
    """
    is_instance = row.classes > 0
    classes = row.classes[is_instance].tolist()
    crowds = row.is_crowd[is_instance].tolist()
    image = _without_margin(row.images, row.boxes[is_instance])
    masks = None if row.masks is None else np.unpackbits(row.masks[is_instance], axis=-1)
    panel = Panel(
        boxes=row.boxes[is_instance],
        texts=[
            class_names[int(number) - 1] + (" (crowd)" if crowd else "")
            for number, crowd in zip(classes, crowds, strict=True)
        ],
        colours=[class_colour(number) for number in classes],
        caption=f"{name}: {count_of(len(classes), 'box', 'boxes')}",
        masks=() if masks is None else masks[:, : image.shape[0], : image.shape[1]] > 0,
    )
    return draw_panels(image, [panel])


def _without_margin(canvas: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Cuts off black rows below the image and its boxes, and such columns to the right."""
    ends = np.ceil(boxes[:, 2:].max(axis=0, initial=0)).astype(int)
    for axis in (0, 1):
        places = np.flatnonzero(canvas.any(axis=(1 - axis, 2)))
        ends[axis] = max(ends[axis], places[-1] + 1 if len(places) else canvas.shape[axis])
    return canvas[: ends[0], : ends[1]]
