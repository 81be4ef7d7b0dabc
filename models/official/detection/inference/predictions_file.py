"""Reads and writes predictions files, the detections of many images, without TensorFlow.

Parquet, one row per image, or a pickle of plain dicts and NumPy arrays; functions take open binary
files, so that any file system works. The class list and free metadata are inside the file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

import pyarrow as pa

from tpudet.detection.inference.predictions import (
    FORMAT,
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
    check_blocks,
)
from tpudet.detection.inference.predictions_limits import check_metadata
from tpudet.detection.inference.predictions_parquet import open_parquet, write_parquet
from tpudet.detection.inference.predictions_pickle import open_pickle, write_pickle
from tpudet.trainkit.class_list import read_class_list


class Predictions(NamedTuple):
    """A whole predictions file."""

    images: list[ImagePredictions]
    class_list_text: str  # contents of classes.csv
    metadata: dict  # values of JSON; "unreadable": reasons by name of images without predictions


def open_predictions(file: IO[bytes], name: str) -> StoredPredictions:
    """Reads the metadata of a predictions file; its images are read on demand.

    Args:
        file: opened for reading bytes, and kept open as long as the images are read.
        name: see `read_predictions`; a pickle is read into memory whole.

    Raises:
        PredictionsError: it is of another kind; while its images are read also what
            `read_predictions` refuses.
    """
    with _name_errors(name):
        stored = (open_pickle if name.endswith(".pkl") else open_parquet)(file)
        check_metadata(stored.metadata)
        num_classes = len(read_class_list(stored.class_list_text))
    return stored._replace(
        image_ids=lambda: _read_ids(stored, name),
        blocks=lambda: _read_blocks(stored, name, num_classes),
    )


def _read_ids(stored: StoredPredictions, name: str) -> list[str]:
    with _name_errors(name):
        return stored.image_ids()


def _read_blocks(
    stored: StoredPredictions, name: str, num_classes: int
) -> Iterator[Sequence[ImagePredictions]]:
    with _name_errors(name):
        yield from check_blocks(stored.blocks(), num_classes)


@contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Of a file that is damaged wherever it is read, the error is a message with its name."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        raise PredictionsError(f"{name} is not a usable predictions file: {error}") from error


def read_predictions(file: IO[bytes], name: str) -> Predictions:
    """Reads a predictions file whole.

    Args:
        file: opened for reading bytes.
        name: its name, for messages; one that ends in `.pkl` is read as a pickle of nothing but
            dicts, lists, strings, numbers and NumPy arrays.

    Raises:
        PredictionsError: it is of another kind, or has a class that its class list lacks, a number
            that is not finite, a damaged mask, or an image twice.
    """
    stored = open_predictions(file, name)
    images = [image for block in stored.blocks() for image in block]
    return Predictions(images, stored.class_list_text, stored.metadata)


def write_predictions(
    file: IO[bytes],
    name: str,
    blocks: Iterable[Sequence[ImagePredictions]],
    *,
    class_list_text: str,
    metadata: Mapping[str, object],
) -> int:
    """Writes a predictions file; inverse of `read_predictions`.

    Args:
        file: opened for writing bytes.
        name: its name; one that ends in `.pkl` becomes a pickle (all images in memory at once),
            any other Parquet, a row group per block, so that memory holds one block.
        blocks: images in the order of the file, all of them with masks or none.
        class_list_text: contents of classes.csv.
        metadata: JSON values.

    Returns:
        The number of images.

    Raises:
        PredictionsError: `read_predictions` would refuse it.
    """
    num_classes = len(read_class_list(class_list_text))
    checked = check_blocks(blocks, num_classes)
    keys = {"format": FORMAT, "classes": class_list_text, "metadata": json.dumps(dict(metadata))}
    return (write_pickle if name.endswith(".pkl") else write_parquet)(file, checked, keys)
