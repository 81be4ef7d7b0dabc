"""Reads the pickles of Detectron2's model zoo, without executing anything in them."""

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.numpy_pickle import PickledArray, load_numpy_pickle
from tpudet.trainkit.files.unpickler import describe
from tpudet.trainkit.weights.stored_weights import (
    LazyTensors,
    StoredWeights,
    WeightsError,
    require_no_growth,
)

_MAX_DIMENSIONS = 5
_WEIGHTS = "model"  # the key of the weights; beside it stand the author and the like
_AUTHOR = "__author__"


def is_pickle(start: bytes) -> bool:
    """Whether a file begins as a pickle of Python 2 or later does: protocols 2 to 5."""
    return start[:1] == pickle.PROTO and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read_detectron2(file: Any, path: str) -> StoredWeights:
    """Reads NumPy arrays by name, in a dictionary or under its key `model`.

    Args:
        file: open at its start.
        path: of the file, for messages.

    Raises:
        WeightsError: cut off, damaged, or with more in it than arrays and plain values.
    """
    try:
        content = load_numpy_pickle(file, max_dimensions=_MAX_DIMENSIONS, encoding="latin1")
    except pickle.UnpicklingError as error:
        raise WeightsError(f"{path}: refused, because {error}.") from error
    except Exception as error:  # a damaged pickle is a random program: it fails in any way
        raise WeightsError(f"{path} is cut off or damaged: {error}. Fetch it again.") from error
    notes, variant = [], ""
    if isinstance(content, Mapping) and isinstance(content.get(_WEIGHTS), Mapping):
        others = [describe(key) for key in content if key != _WEIGHTS]
        if others:
            notes.append(f"of {_WEIGHTS!r}; left out beside it: {listing(others)}")
        if content.get(_AUTHOR) == "torchvision":  # tools/convert-torchvision-to-d2.py
            variant = "torchvision"
        content = content[_WEIGHTS]
    readers: dict[str, Callable[[], np.ndarray]] = {}
    num_bytes = 0
    for name, value in content.items() if isinstance(content, Mapping) else ():
        if isinstance(name, str) and isinstance(value, PickledArray) and value.array is not None:
            readers[name] = value.array.view
            num_bytes += value.array.nbytes
    if not readers:
        raise WeightsError(
            f"{path} is a pickle without weights: it has no NumPy arrays by name. Of pickles only "
            "those of Detectron2 are supported."
        )
    require_no_growth(num_bytes, path)
    if len(readers) < len(content):
        notes.append(f"{len(content) - len(readers)} entries that are no arrays left out")
    return StoredWeights(LazyTensors(readers), "Detectron2, .pkl", tuple(notes), variant)
