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
from tpudet.detection.inference.predictions_limits import require_plausible_size
from tpudet.trainkit.errors import is_utf8
from tpudet.trainkit.files.json_text import parse_json
from tpudet.trainkit.files.numpy_pickle import PickledArray, load_numpy_pickle

# Bytes that the objects of an image and of a mask take; in a pickle they are some 100 and 30.
_IMAGE_BYTES = 256
_MASK_BYTES = 64
_CONVERTED_BYTES = 256  # of a mask more, where its counts are bytes


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
        if not isinstance(classes, str) or not is_utf8(classes):
            raise TypeError("classes must be a string that can be written as UTF-8")
        images = _read_images(contents["images"], len(data))
    except (KeyError, TypeError, OverflowError) as error:
        raise PredictionsError(
            f"a part of the pickle is missing or of another kind: {error}"
        ) from error
    return StoredPredictions(
        classes,
        metadata,
        len(images),
        lambda: [image.image_id for image in images],
        lambda: iter([images]),
    )


def _read_images(stored: Any, num_bytes: int) -> list[ImagePredictions]:
    """Converts the images of a pickle, each only if there is room for it."""
    images, total = [], 0
    for image in _as_list(stored):
        if not isinstance(image, dict) or not isinstance(image["image_id"], str):
            raise TypeError("an image must be a dict with an image_id")
        if not is_utf8(image["image_id"]):
            shown = ascii(image["image_id"][:100])
            raise TypeError(f"the image_id {shown} cannot be written as UTF-8")
        total += _size(image)
        require_plausible_size(total, num_bytes)
        images.append(_from_dict(image))
    return images


def _size(image: dict) -> int:
    """The bytes that an image will take, before anything is converted."""
    numbers = sum(_numbers_size(image[name]) for name in ("labels", "scores", "boxes_normalized"))
    masks = _as_list(image.get("masks") or [])
    counts = [mask.get("counts") for mask in masks if isinstance(mask, dict)]
    converted = [text for text in counts if isinstance(text, bytes | bytearray)]
    texts = [image["image_id"], *converted, *(text for text in counts if isinstance(text, str))]
    objects = _MASK_BYTES * len(masks) + _CONVERTED_BYTES * len(converted)
    return _IMAGE_BYTES + numbers + objects + sum(map(len, texts))


def _numbers_size(value: Any) -> int:
    """The bytes of what `_to_array` returns, and of the list that it makes of a list."""
    if isinstance(value, PickledArray) and value.array is not None:
        return 4 * value.array.size
    items = _as_list(value)
    return 12 * sum(len(item) if isinstance(item, list | tuple) else 1 for item in items)


def _from_dict(image: dict) -> ImagePredictions:
    masks = image.get("masks")
    return ImagePredictions(
        image["image_id"],
        _to_labels(image["labels"]),
        _to_array(image["scores"], np.float32),
        _to_array(image["boxes_normalized"], np.float32).reshape(-1, 4),
        None if masks is None else [_with_text_counts(mask) for mask in _as_list(masks)],
    )


def _with_text_counts(mask: Any) -> Any:
    """The mask with counts as text, as JSON and Parquet have them; pycocotools gives bytes."""
    counts = mask.get("counts") if isinstance(mask, dict) else None
    if not isinstance(counts, bytes | bytearray):
        return mask
    return {"size": mask["size"], "counts": counts.decode("latin-1")}  # checked as all counts are


def _to_labels(value: Any) -> np.ndarray:
    """Class ids as int32; refuses what a cast would make another class of."""
    if isinstance(value, PickledArray) and value.array is not None:
        labels, are_integers = value.array, True
    else:
        labels = _to_array(value, np.float64)
        are_integers = not any(isinstance(item, bool) for item in _as_list(value))
    are_integers &= labels.dtype.kind in "iuf" and bool((np.trunc(labels) == labels).all())
    limits = np.iinfo(np.int32)
    if not are_integers or not ((labels >= limits.min) & (labels <= limits.max)).all():
        raise TypeError("labels must be integers of 32 bits")
    return _to_array(value, np.int32)


def _to_array(value: Any, dtype: type) -> np.ndarray:
    """An array of a pickle, or a list of numbers or of boxes."""
    if isinstance(value, PickledArray) and value.array is not None:
        if not value.array.ndim:
            raise TypeError("a single number where an array of them is expected")
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
