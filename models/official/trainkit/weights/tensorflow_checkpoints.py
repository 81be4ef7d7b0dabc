"""Reads TensorFlow checkpoints: named variables (TF1), objects (TF2), and tpudet's own."""

import os
import re
from collections import Counter
from functools import partial
from typing import Any

import numpy as np

from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.weights.stored_weights import LazyTensors, StoredWeights, WeightsError
from tpudet.trainkit.weights.tensor_bundle import (
    GLOBAL_STEP,
    INDEX_SUFFIX,
    POINTER_NAME,
    UnreadableCheckpointError,
    open_bundle,
    read_bundle_tensor,
)

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OWN_COUNTERS = {GLOBAL_STEP, "records_consumed"}
_NO_WEIGHTS_OF_OURS = re.compile(rf"(optimizer|ema)/.*|{'|'.join(_OWN_COUNTERS)}")
_AVERAGE_SUFFIX = "/ExponentialMovingAverage"
_NO_WEIGHTS_OF_TF1 = re.compile(rf"{GLOBAL_STEP}|.*\bbeta[12]_power(_\d+)?")
_NO_WEIGHTS_OF_TF2 = re.compile(
    r".*/\.OPTIMIZER_SLOT/.*|(.*/)?optimizer/(?!_trainable_variables/).*|(.*/)?save_counter"
    r"|(keras_api|_all_variables)/.*"  # metrics, and the second copy of an exported model
)
# Keras numbers what it stores: `…/layer_with_weights-3/kernel`, `…/_trainable_variables/3`.
_NUMBERED = re.compile(r"(.*/)?(layer(_with_weights)?-)?\d+(/.*)?")


def find_checkpoint(path: str) -> str | None:
    """Returns the prefix of the checkpoint at `path`; None for another kind of file.

    Args:
        path: a prefix, its `.index` or `.data-…` file, a folder with checkpoints (the newest is
            meant), or a SavedModel.

    Raises:
        WeightsError: a folder with no checkpoint, or with several and no hint at the newest.
    """
    prefix = re.sub(r"\.(index|data-\d{5}-of-\d{5})$", "", path)
    if storage.exists(prefix + INDEX_SUFFIX):
        return prefix
    if not storage.is_folder(path):
        return None
    return _newest_in(path)


def _newest_in(directory: str) -> str:
    saved_model = os.path.join(directory, "variables/variables")
    if storage.exists(saved_model + INDEX_SUFFIX):
        return saved_model
    names = [name for name in storage.list_names(directory) if name.endswith(INDEX_SUFFIX)]
    prefixes = [name.removesuffix(INDEX_SUFFIX) for name in names]
    own = _newest_own(directory, prefixes)
    if own:
        return own
    pointer = storage.read_text(os.path.join(directory, POINTER_NAME)) or ""
    newest = re.search(r'^model_checkpoint_path: "(?:[^"\n]*/)?([^"\n/]+)"$', pointer, re.M)
    if newest and newest[1] in prefixes:
        return os.path.join(directory, newest[1])
    if len(prefixes) == 1:
        return os.path.join(directory, prefixes[0])
    if prefixes:
        raise WeightsError(
            f"{directory} holds {len(prefixes)} checkpoints, and its file `{POINTER_NAME}` does "
            f"not say which is the newest. Name one of {listing(sorted(prefixes))}."
        )
    raise WeightsError(
        f"{directory} is a folder without a checkpoint. Name the file or the checkpoint that is "
        f"meant; it holds {listing(storage.list_names(directory)) or 'nothing'}."
    )


def _newest_own(directory: str, names: list[str]) -> str | None:
    """The prefix with the highest step among checkpoints of tpudet; None if there is none.

    Their folder decides and not the pointer, which is one save behind after a kill.
    """
    prefixes = {}
    for name in names:
        prefix = os.path.join(directory, name)
        try:
            reader = open_bundle(prefix)
            if set(reader.get_variable_to_dtype_map()) >= _OWN_COUNTERS:
                prefixes[int(read_bundle_tensor(reader, prefix, GLOBAL_STEP))] = prefix
        except UnreadableCheckpointError:
            continue
    return prefixes[max(prefixes)] if prefixes else None


def read_tensorflow_checkpoint(prefix: str, *, prefer_averages: bool) -> StoredWeights:
    """Reads a checkpoint of any of the three kinds; optimizers and counters are left out.

    Args:
        prefix: path without `.index`.
        prefer_averages: give the moving average, if stored, under a variable's name.

    Raises:
        WeightsError: torn, or parts of it gone.
    """
    try:
        reader = open_bundle(prefix)
    except UnreadableCheckpointError as error:
        raise WeightsError(f"{error}. Fetch or copy the checkpoint's files again.") from error
    import tensorflow as tf  # late, as in open_bundle

    dtypes = reader.get_variable_to_dtype_map()
    no_numbers = (tf.string, tf.variant, tf.resource)
    keys = sorted(key for key, dtype in dtypes.items() if dtype not in no_numbers)
    if _OBJECT_GRAPH in dtypes:
        kind, names, averages = "TensorFlow, objects", _object_names(reader, prefix, keys), {}
    elif set(keys) >= _OWN_COUNTERS:
        kind = "TensorFlow, of tpudet"
        names = {key: key for key in keys if not _NO_WEIGHTS_OF_OURS.fullmatch(key)}
        averages = {key: f"ema/{key}" for key in names if f"ema/{key}" in dtypes}
    else:
        kind, names = "TensorFlow, by name", _variable_names(keys)
        averages = {key: key + _AVERAGE_SUFFIX for key in names if key + _AVERAGE_SUFFIX in dtypes}
    notes = []
    if averages and prefer_averages:
        notes.append(f"moving averages taken for {len(averages)} of {len(names)} tensors")
        names |= averages
    left_out = len(keys) - len(names) - len(averages)
    if left_out:
        notes.append(f"{left_out} tensors left out: optimizer, counters or second copies")
    tensors = {name: partial(_read, reader, prefix, key) for name, key in names.items()}
    return StoredWeights(LazyTensors(tensors), kind, tuple(notes))


def _variable_names(keys: list[str]) -> dict[str, str]:
    """The variables of TF1: their slots and averages are named below them."""
    present = set(keys)
    return {
        key: key
        for key in keys
        if key.rpartition("/")[0] not in present and not _NO_WEIGHTS_OF_TF1.fullmatch(key)
    }


def _object_names(reader: Any, prefix: str, keys: list[str]) -> dict[str, str]:
    """Names -> keys: the path through the objects, or the variable's own where that is numbers."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    shape = reader.get_variable_to_shape_map()[_OBJECT_GRAPH]
    if shape:
        raise WeightsError(f"{prefix}: its list of objects is damaged: it has the shape {shape}")
    try:
        graph = TrackableObjectGraph.FromString(reader.get_tensor(_OBJECT_GRAPH))
    except Exception as error:  # reader and parser raise exceptions of many kinds
        raise WeightsError(f"{prefix}: its list of objects is damaged: {error}") from error
    own_names = {
        attribute.checkpoint_key: attribute.full_name
        for node in graph.nodes
        for attribute in node.attributes
    }
    paths = {key: _object_path(key) for key in keys}
    names = {key: path for key, path in paths.items() if not _NO_WEIGHTS_OF_TF2.fullmatch(path)}
    uses = Counter([*names.values(), *(own_names.get(key) for key in names)])
    for key, path in names.items():
        own_name = own_names.get(key)
        if own_name and uses[own_name] == 1 and _NUMBERED.fullmatch(path):
            names[key] = own_name
    return {name: key for key, name in names.items()}


def _object_path(key: str) -> str:
    """The key without its suffix, TensorFlow's escapes undone: `.S` is a slash, `..` a dot."""
    path = key.removesuffix(_VALUE_SUFFIX)
    return re.sub(r"\.([.S])", lambda match: "/" if match[1] == "S" else ".", path)


def _read(reader: Any, prefix: str, key: str) -> np.ndarray:
    try:
        return read_bundle_tensor(reader, prefix, key)
    except UnreadableCheckpointError as error:
        raise WeightsError(f"{error}. Fetch or copy the checkpoint's files again.") from error
