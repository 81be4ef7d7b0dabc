"""Predictions as a pickle of plain dicts, lists, strings, numbers and NumPy arrays."""

import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from tpudet.detection.inference.predictions import (
    FORMAT,
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
)
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.numpy_pickle import PickledArray, load_numpy_pickle

_MAX_METADATA_NODES = 1_000_000
_MAX_METADATA_DEPTH = 50
# A pickle can name one array, string or list any number of times; those of honest files differ.
_MAX_REPEATS = 16
_SMALL_BYTES = 1 << 26  # below which repeats are not counted


def write_pickle(
    file: IO[bytes], blocks: Iterable[Sequence[ImagePredictions]], keys: Mapping[str, str]
) -> int:
    """Writes blocks of images; returns their number. `keys` are those of `write_parquet`."""
    images = [image for block in blocks for image in block]
    metadata = parse_json(keys["metadata"])
    contents = {**keys, "metadata": metadata, "images": [_to_dict(image) for image in images]}
    pickle.dump(contents, file, protocol=5)
    return len(images)


def open_pickle(file: IO[bytes]) -> StoredPredictions:
    """Reads a file whole; raises a PredictionsError if it is of another kind."""
    data = file.read()
    try:
        contents = load_numpy_pickle(io.BytesIO(data), max_dimensions=2)
    except Exception as error:  # damaged bytes raise anything from IndexError to OverflowError
        raise PredictionsError(f"the pickle cannot be read: {error}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise PredictionsError(f"the pickle is no dict that says {FORMAT!r}")
    try:
        classes, metadata = contents["classes"], contents["metadata"]
        if not isinstance(classes, str) or not isinstance(metadata, dict):
            raise TypeError("classes must be a string and metadata a dict")
        _check_metadata(metadata)
        images = [_from_dict(image) for image in _as_list(contents["images"])]
    except (KeyError, TypeError, OverflowError) as error:
        raise PredictionsError(
            f"a part of the pickle is missing or of another kind: {error}"
        ) from error
    _check_repeats(images, len(data))
    return StoredPredictions(
        classes,
        metadata,
        len(images),
        lambda: [image.image_id for image in images],
        lambda: iter([images]),
    )


def _check_metadata(metadata: Any) -> None:
    """Refuses what JSON has not, and lists that hold one another many times."""
    waiting, count = [(metadata, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if isinstance(value, dict | list | tuple):
            below = [*value, *value.values()] if isinstance(value, dict) else value
            if depth > _MAX_METADATA_DEPTH or count + len(below) > _MAX_METADATA_NODES:
                raise PredictionsError(
                    f"the metadata of the pickle has more than {_MAX_METADATA_NODES:,} values or "
                    f"more than {_MAX_METADATA_DEPTH} levels"
                )
            count += len(below)
            waiting += [(child, depth + 1) for child in below if not isinstance(child, str)]
        elif not isinstance(value, str | int | float | None):
            raise TypeError(f"metadata with a {type(value).__name__.strip('_')}")


def _check_repeats(images: Sequence[ImagePredictions], num_bytes: int) -> None:
    total = sum(array.nbytes for image in images for array in image[1:4])
    total += sum(
        len(mask["counts"])
        for image in images
        for mask in image.masks or ()
        if isinstance(mask, dict) and isinstance(mask.get("counts"), str | bytes)
    )
    if total > max(_MAX_REPEATS * num_bytes, _SMALL_BYTES):
        raise PredictionsError(
            f"the {num_bytes:,} bytes of the pickle stand for {total:,}: the same arrays or masks "
            "many times"
        )


def _from_dict(image: Any) -> ImagePredictions:
    if not isinstance(image, dict) or not isinstance(image["image_id"], str):
        raise TypeError("an image must be a dict with an image_id")
    masks = image.get("masks")
    return ImagePredictions(
        image["image_id"],
        _to_array(image["labels"], np.int32),
        _to_array(image["scores"], np.float32),
        _to_array(image["boxes_normalized"], np.float32).reshape(-1, 4),
        None if masks is None else _as_list(masks),
    )


def _to_array(value: Any, dtype: type) -> np.ndarray:
    """An array of a pickle, or a list of numbers or of boxes."""
    if isinstance(value, PickledArray) and value.array is not None:
        return np.asarray(value.array, dtype)
    numbers: list[Any] = []
    for item in _as_list(value):
        numbers += item if isinstance(item, list | tuple) and len(item) == 4 else [item]
    if not all(isinstance(number, int | float) for number in numbers):
        raise TypeError("labels, scores and boxes must be arrays or lists of numbers")
    return np.array(numbers, dtype)


def _as_list(value: Any) -> list:
    if not isinstance(value, list | tuple):
        raise TypeError(f"a {type(value).__name__.strip('_')} where a list is expected")
    return list(value)


def _to_dict(image: ImagePredictions) -> dict:
    return {k: v for k, v in image._asdict().items() if k != "masks" or v is not None}
