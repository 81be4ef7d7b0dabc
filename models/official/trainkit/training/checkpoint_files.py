"""The files of one checkpoint: written under a temporary name, verified, published, removed."""

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.remote import write_errors
from tpudet.trainkit.weights.tensor_bundle import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    POINTER_NAME,
    UnreadableCheckpointError,
    open_bundle,
    read_bundle_tensor,
)

NAME_PREFIX = "model.ckpt-"

logger = logging.getLogger(__name__)


def write_checkpoint(
    prefix: str, arrays: Mapping[str, np.ndarray], *, verify: Callable[[], None] = lambda: None
) -> None:
    """Writes the arrays under a temporary name, reads them back to compare, and publishes them.

    Args:
        prefix: of the checkpoint.
        arrays: by checkpoint key.
        verify: as in `Checkpoints`.

    Raises:
        UnreadableCheckpointError: it reads back differently; nothing was published.
        OSError: it cannot be written; nothing was published, and nothing of it is left.
    """
    temporary = temporary_prefix(prefix)
    try:
        _write_bundle(temporary, arrays, prefix)
        verify()
        publish_checkpoint(temporary, prefix)
    except OSError:
        with contextlib.suppress(OSError):
            remove_checkpoint(temporary)  # a full disk then has room for the reason in the ledger
        raise


def _write_bundle(temporary: str, arrays: Mapping[str, np.ndarray], prefix: str) -> None:
    keys = sorted(arrays)
    with write_errors(prefix), tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=temporary,
            tensor_names=keys,
            shape_and_slices=[""] * len(keys),
            tensors=[tf.convert_to_tensor(arrays[key]) for key in keys],
        )
    reader = open_bundle(temporary)
    for key in keys:
        # Bytes, not values: a NaN is equal to itself here.
        if read_bundle_tensor(reader, temporary, key).tobytes() != arrays[key].tobytes():
            raise UnreadableCheckpointError(f"{temporary}: {key} was read back differently")


def temporary_prefix(prefix: str) -> str:
    """Returns a prefix beside `prefix` that no other process writes to."""
    return f"{prefix}.{uuid.uuid4().hex[:12]}{storage.TEMPORARY_SUFFIX}"


def publish_checkpoint(temporary: str, prefix: str) -> None:
    """Renames a finished pair, the index last: a checkpoint exists once its index does."""
    for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
        storage.sync(temporary + suffix)
    storage.remove_if_there(prefix + INDEX_SUFFIX)  # an old index never meets new data
    for suffix in (DATA_SUFFIX, INDEX_SUFFIX):
        storage.rename(temporary + suffix, prefix + suffix)
    storage.sync(os.path.dirname(prefix) or ".")


def verify_checkpoint(prefix: str) -> None:
    """Reads every tensor against its checksum; raises what `open_bundle` does."""
    reader = open_bundle(prefix)
    for key in reader.get_variable_to_shape_map():
        read_bundle_tensor(reader, prefix, key)


def read_index(prefix: str) -> bytes | None:
    """Returns the bytes of a checkpoint's index, which tell it from another of the same name.

    None if it is gone.
    """
    try:
        with storage.open_bytes(prefix + INDEX_SUFFIX) as file:
            return file.read()
    except FileNotFoundError:
        return None


def remove_checkpoint(prefix: str) -> None:
    """Removes a pair, index first, so that a kill in between leaves no index without data."""
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        storage.remove_if_there(prefix + suffix)


def remove_leftovers(directory: str, *files: str) -> None:
    """Removes data files whose index was never published, and temporary files of checkpoints.

    Those of other files stay, since an evaluator beside the trainer may be writing them.

    Args:
        directory: the folder, claimed by this process.
        files: names of further files whose temporary ones are removed.
    """
    names = storage.list_names(directory)
    owned = (NAME_PREFIX, *(f"{file}." for file in (POINTER_NAME, *files)))
    for name in names:
        is_orphan = (
            name.startswith(NAME_PREFIX)
            and name.endswith(DATA_SUFFIX)
            and name.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX not in names
        )
        if is_orphan or (storage.TEMPORARY_SUFFIX in name and name.startswith(owned)):
            logger.info("Removing %s, left behind by a killed run", os.path.join(directory, name))
            storage.remove_if_there(os.path.join(directory, name))


def write_pointer(directory: str, names: list[str]) -> None:
    """Replaces TensorFlow's `checkpoint` file (CheckpointState as text), newest name last."""
    lines = [f'model_checkpoint_path: "{names[-1]}"\n']
    lines += [f'all_model_checkpoint_paths: "{name}"\n' for name in names]
    path = os.path.join(directory, POINTER_NAME)
    if storage.read_text(path) != "".join(lines):
        storage.write_text(path, "".join(lines))
