"""Reads weights of any format, which is detected by content, not by file name."""

import difflib
import functools
import io
import os
import weakref
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.weights.detectron2_files import is_pickle, read_detectron2
from tpudet.trainkit.weights.keras_files import WEIGHTS_IN_ARCHIVE, read_keras
from tpudet.trainkit.weights.safetensors_files import read_safetensors
from tpudet.trainkit.weights.stored_weights import (
    LazyTensors,
    StoredWeights,
    WeightsError,
    read_member,
)
from tpudet.trainkit.weights.tensorflow_checkpoints import (
    find_checkpoint,
    read_tensorflow_checkpoint,
)
from tpudet.trainkit.weights.torch_files import (
    OLD_FORMAT_START,
    is_torch_pickle,
    read_old_torch,
    read_torch_zip,
)

_HDF5_START = b"\x89HDF\r\n\x1a\n"
_ZIP_START = b"PK\x03\x04"
_TABLE_END = bytes.fromhex("57fb808b247547db")  # of the single-file checkpoints before TensorFlow 1
# Of a preset of KerasHub: its backbone, and what a task adds to that.
_GROUPED = "res2.0.conv2.weight"  # [output, input / groups, 3, 3], in Detectron2's names
_PRESET = (WEIGHTS_IN_ARCHIVE, "task.weights.h5")
_KNOWN = (
    "TensorFlow checkpoints (the prefix, the .index file or the folder), .h5, .weights.h5 and "
    ".keras of Keras, folders of KerasHub's presets, .safetensors, .pth, .pt or .bin of PyTorch, "
    "and .pkl of Detectron2"
)


def read_weights(path: str, *, prefer_averages: bool = True) -> StoredWeights:
    """Reads the weights of one file or checkpoint, lazily, under their names there.

    Optimizers, counters and other training state are left out, with a note.

    Args:
        path: local or in a bucket. For a TensorFlow checkpoint, its prefix, one of its files, or
            the folder, which means the newest one. For a preset of KerasHub, its folder.
        prefer_averages: take moving averages, if stored, under the names of the weights.

    Raises:
        WeightsError: missing, of an unknown format, truncated, damaged, or refused because it may
            run code. Damage in the middle of a file may surface only when a tensor is read.
    """
    try:
        preset = [place for name in _PRESET if storage.is_file(place := os.path.join(path, name))]
        prefix = None if preset else find_checkpoint(path)
        if preset:
            stored = _read_preset(preset)
        elif prefix is not None:
            stored = read_tensorflow_checkpoint(prefix, prefer_averages=prefer_averages)
        elif storage.is_file(path):
            stored = _read_file(path, prefer_averages=prefer_averages)
        elif storage.exists(path):
            raise WeightsError(f"{path} is a device or FIFO, not a file. Supported are {_KNOWN}.")
        else:
            raise _missing(path)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {storage.reason(error)}") from error
    if not stored.tensors:
        raise WeightsError(f"{path} holds no weights ({stored.format}).")
    return stored if stored.variant else stored._replace(variant=_variant(stored.tensors))


def _variant(tensors: Mapping[str, np.ndarray]) -> str:
    """Tells ResNeXt from ResNet where Detectron2 gives both the same names."""
    shapes = [tensors[name].shape for name in tensors if name.endswith(_GROUPED)]
    is_grouped = any(len(shape) == 4 and shape[0] != shape[1] for shape in shapes)
    return "ResNeXt" if is_grouped else ""


def _read_preset(paths: Sequence[str]) -> StoredWeights:
    files = [_read_open_file(path, read_keras) for path in paths]
    readers = {
        name: functools.partial(file.tensors.__getitem__, name)
        for file in files
        for name in file.tensors
    }
    notes = dict.fromkeys(note for file in files for note in file.notes)
    return StoredWeights(LazyTensors(readers), "KerasHub, preset", tuple(notes))


def _read_file(path: str, *, prefer_averages: bool) -> StoredWeights:
    with storage.open_file(path, "rb") as file:
        start = file.read(16)
        file.seek(max(0, storage.stat(path).size - len(_TABLE_END)))
        end = file.read(len(_TABLE_END))
    if start.startswith(_HDF5_START):
        return _read_open_file(path, read_keras)
    if start.startswith(_ZIP_START):
        read_zip = functools.partial(_read_zip, prefer_averages=prefer_averages)
        return _read_open_file(path, read_zip)
    if start.startswith(OLD_FORMAT_START):
        return read_old_torch(path, prefer_averages=prefer_averages)
    if is_pickle(start):
        return _read_open_file(path, read_detectron2)
    if end == _TABLE_END:
        return read_tensorflow_checkpoint(path, prefer_averages=prefer_averages)
    if start[8:9] == b"{":
        return read_safetensors(path)
    what = f"begins with {start.hex(' ')}" if start else "is empty"
    raise WeightsError(f"{path} is not a known file of weights: it {what}. Supported are {_KNOWN}.")


def _read_open_file(path: str, read: Callable[[Any, str], StoredWeights]) -> StoredWeights:
    """Calls a reader with the open file, which is closed once its tensors are no longer in use."""
    file = storage.open_file(path, "rb")
    try:
        stored = read(file, path)
    except BaseException:
        file.close()
        raise
    weakref.finalize(stored.tensors, file.close)
    return stored


def _read_zip(file: Any, path: str, *, prefer_averages: bool) -> StoredWeights:
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:  # zipfile fails in any way where the archive is damaged
        raise WeightsError(f"{path} is cut off or damaged: {error}. Fetch it again.") from error
    names = archive.namelist()
    if any(is_torch_pickle(name) for name in names):
        return read_torch_zip(archive, path, prefer_averages=prefer_averages)
    if WEIGHTS_IN_ARCHIVE in names:
        # In memory: for every seek backwards zipfile would read from the start again.
        return read_keras(
            io.BytesIO(read_member(archive, WEIGHTS_IN_ARCHIVE, path)), path, "Keras, .keras"
        )
    raise WeightsError(
        f"{path} is a zip archive without weights; it holds {listing(names, 5)}. Supported are "
        f"{_KNOWN}."
    )


def _missing(path: str) -> WeightsError:
    directory, name = os.path.split(path)
    names = storage.list_names(directory or ".")
    near = difflib.get_close_matches(name, names, n=3) or names[:5]
    held = f"there is {', '.join(near)}" if near else "the folder is missing or empty"
    return WeightsError(
        f"{path}: there is no such file or checkpoint; in {directory or '.'} {held}."
    )
