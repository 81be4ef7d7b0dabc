"""Reads and writes predictions files, the detections of many images, without TensorFlow.

Parquet, one row per image, or a pickle of plain dicts and NumPy arrays; functions take open binary
files, so that any file system works. The class list and free metadata are inside the file.
"""

import io
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa

from tpudet.detection.inference.predictions import (
    FORMAT,
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
    check_blocks,
)
from tpudet.detection.inference.predictions_parquet import open_parquet, write_parquet
from tpudet.trainkit.class_list import read_class_list

# Everything that a pickled NumPy array of numbers names, in NumPy 1 and 2.
_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    *(
        (f"numpy.{core}.{module}", name)
        for core in ("core", "_core")
        for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
    ),
}


class Predictions(NamedTuple):
    """A whole predictions file."""

    images: list[ImagePredictions]
    class_list_text: str  # contents of classes.csv
    metadata: dict  # values of JSON; "unreadable": names of images that could not be predicted


def open_predictions(file: IO[bytes], name: str) -> StoredPredictions:
    """Reads the metadata of a predictions file; its images are read on demand.

    Args:
        file: opened for reading bytes, and kept open as long as the images are read.
        name: see `read_predictions`; a pickle is read into memory whole.

    Raises:
        PredictionsError: it is of another kind.
    """
    try:
        return (_open_pickle if name.endswith(".pkl") else open_parquet)(file)
    except (pa.ArrowException, pickle.UnpicklingError, EOFError, ValueError) as error:
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
    try:
        num_classes = len(read_class_list(stored.class_list_text))
        images = [image for block in check_blocks(stored.blocks(), num_classes) for image in block]
    except (pa.ArrowException, ValueError) as error:
        raise PredictionsError(f"{name} is not a usable predictions file: {error}") from error
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
    if name.endswith(".pkl"):
        images = [image for block in checked for image in block]
        contents = {
            "format": FORMAT,
            "classes": class_list_text,
            "metadata": json.loads(json.dumps(dict(metadata))),
            "images": [_to_dict(image) for image in images],
        }
        pickle.dump(contents, file, protocol=5)
        return len(images)
    keys = {"format": FORMAT, "classes": class_list_text, "metadata": json.dumps(dict(metadata))}
    return write_parquet(file, checked, keys)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler to which only plain values and NumPy arrays exist."""

    def find_class(self, module: str, name: str):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(
                f"it needs {module}.{name}; only dicts, lists, text, numbers and NumPy arrays are "
                "allowed. A pickle can run any program, so do not open this one elsewhere either"
            )
        return super().find_class(module, name)


def _open_pickle(file: IO[bytes]) -> StoredPredictions:
    try:
        contents = _ArraysOnly(io.BytesIO(file.read())).load()
    except Exception as error:  # damaged bytes raise anything from IndexError to OverflowError
        raise PredictionsError(f"the pickle cannot be read: {error}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise PredictionsError(f"the pickle is no dict that says {FORMAT!r}")
    try:
        images = [
            ImagePredictions(
                str(image["image_id"]),
                np.asarray(image["labels"], np.int32),
                np.asarray(image["scores"], np.float32),
                np.asarray(image["boxes_normalized"], np.float32).reshape(-1, 4),
                image.get("masks"),
            )
            for image in contents["images"]
        ]
        return StoredPredictions(
            contents["classes"],
            contents["metadata"],
            len(images),
            lambda: [image.image_id for image in images],
            lambda: iter([images]),
        )
    except (KeyError, TypeError) as error:
        raise PredictionsError(
            f"a part of the pickle is missing or of another kind: {error}"
        ) from error


def _to_dict(image: ImagePredictions) -> dict:
    return {k: v for k, v in image._asdict().items() if k != "masks" or v is not None}
