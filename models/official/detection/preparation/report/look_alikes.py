"""Images of a prepared set that look alike: one photo saved twice, or frames of one scene.

Each image is shrunk to 16x16 gray pixels, and two look alike where those correlate by more than
0.97. That survives another size, compression, brightness and contrast; not mirroring, and a crop
only of a few percent.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from tpudet.detection.preparation.records.prepared_set import PreparedSplit
from tpudet.detection.preparation.report.sample_images import SampleImage
from tpudet.detection.preparation.report.set_statistics import SetNumbers, SplitColumns
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.opencv_decode import decode_image
from tpudet.trainkit.records import read_records, unconverted

MAX_IMAGES = 50_000  # of a set; shrinking takes a minute, and every pair is compared

_SIDE = 16  # pixels of a shrunk image
_MIN_CORRELATION = 0.97
_MIN_CONTRAST = 4.0  # standard deviation in gray levels; flatter images show nothing to compare
_PAIRS_SHOWN = 12
_BATCH = 64  # images that are decoded at a time
_BLOCK = 1024  # rows of the matrix of correlations that are held at once


Place = tuple[int, int]  # row of the split, row of the image in it


class LookAlikes(NamedTuple):
    """Images of one split that look like an image of another, or of the same: P pairs."""

    first_split: int
    second_split: int  # not before `first_split`
    first_rows: np.ndarray  # [P] int64, the image that it looks most like
    second_rows: np.ndarray  # [P] int64, each once
    correlations: np.ndarray  # [P] float32, above 0.97, in descending order


class DrawnPair(NamedTuple):
    """Two images that look alike, drawn."""

    first: SampleImage
    second: SampleImage
    correlation: float


def search_look_alikes(numbers: SetNumbers) -> list[LookAlikes] | None:
    """Reads the images of a set and compares all; None if they are more than `MAX_IMAGES`."""
    total = sum(len(columns.names) for columns in numbers.columns)
    if total > MAX_IMAGES:
        return None
    with tqdm(total=total, unit="image", desc="look-alikes") as bar:
        shrunk = [shrink_images(split, bar.update) for split in numbers.prepared.splits]
    return find_look_alikes(numbers.columns, shrunk)


def first_pairs(found: Sequence[LookAlikes]) -> list[tuple[Place, Place, float]]:
    """The pairs to show: those of two splits before those of one, then by correlation."""
    ranked = sorted(found, key=lambda one: one.first_split == one.second_split)
    pairs = [
        ((one.first_split, int(first)), (one.second_split, int(second)), float(correlation))
        for one in ranked
        for first, second, correlation in zip(
            one.first_rows, one.second_rows, one.correlations, strict=True
        )
    ]
    return pairs[:_PAIRS_SHOWN]


def shrink_images(split: PreparedSplit, progress: Callable[[int], Any]) -> np.ndarray:
    """Decodes a split's images at a small size, on all cores.

    Args:
        split: the split.
        progress: called with the number of images read since the last call.

    Returns:
        [I, 256] float32 of mean 0 and norm 1; all 0 where the image is flat or cannot be decoded.
    """

    def encoded(_: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        return tf.io.parse_single_example(serialized, keys)["image/encoded"]

    rows: list[np.ndarray] = []
    files = read_records(split.shards).map(unconverted(encoded)).batch(_BATCH).prefetch(2)
    with ThreadPoolExecutor() as pool:
        for batch in files.as_numpy_iterator():
            rows.extend(pool.map(_shrink, batch))
            progress(len(batch))
    return np.stack(rows)


def _shrink(encoded: bytes) -> np.ndarray:
    # libjpeg decodes an eighth at a fifth of the time; a shrunk image needs no more.
    try:
        image = decode_image(
            encoded, cv2.IMREAD_REDUCED_GRAYSCALE_8 | cv2.IMREAD_IGNORE_ORIENTATION
        )
        if min(image.shape) < _SIDE:
            image = decode_image(encoded, cv2.IMREAD_GRAYSCALE)
    except ImageError:
        return np.zeros(_SIDE * _SIDE, np.float32)
    small = cv2.resize(image.astype(np.float32), (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    centred = small.ravel() - small.mean()
    if centred.std() < _MIN_CONTRAST:
        return np.zeros_like(centred)
    return centred / np.linalg.norm(centred)


def find_look_alikes(
    columns: Sequence[SplitColumns], shrunk: Sequence[np.ndarray]
) -> list[LookAlikes]:
    """Finds the images that look like one of an earlier split, or like an earlier one of their own.

    Equal files, and images of the same name in two splits, are no look-alikes: they are the same
    image.

    Args:
        columns: of every split.
        shrunk: the images of every split, as `shrink_images` returns them.
    """
    return [
        found
        for second in range(len(columns))
        for first in range(second + 1)
        if len((found := _compare(columns, shrunk, first, second)).second_rows)
    ]


def _compare(
    columns: Sequence[SplitColumns], shrunk: Sequence[np.ndarray], first: int, second: int
) -> LookAlikes:
    best_rows, best = [], []
    for start in range(0, len(shrunk[second]), _BLOCK):
        rows = slice(start, start + _BLOCK)
        found = shrunk[second][rows] @ shrunk[first].T
        found[columns[second].contents[rows, None] == columns[first].contents] = 0
        found[columns[second].names[rows, None] == columns[first].names] = 0
        if first == second:
            found = np.tril(found, k=start - 1)
        best_rows.append(found.argmax(axis=1))
        best.append(found.max(axis=1))
    correlations = np.concatenate(best)
    chosen = np.flatnonzero(correlations > _MIN_CORRELATION)
    chosen = chosen[np.argsort(-correlations[chosen], kind="stable")]
    return LookAlikes(
        first, second, np.concatenate(best_rows)[chosen], chosen, correlations[chosen]
    )
