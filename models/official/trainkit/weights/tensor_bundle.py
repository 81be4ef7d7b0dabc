"""Reads TensorFlow V2 tensor bundles, the format of checkpoints and of a SavedModel's variables.

A bundle is the pair `<prefix>.data-00000-of-00001` and `<prefix>.index`. On `ram://`
`tf.train.list_variables` takes a prefix for a folder; these functions do not.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.weights.bundle_index import check_index

DATA_SUFFIX = ".data-00000-of-00001"
INDEX_SUFFIX = ".index"
POINTER_NAME = "checkpoint"  # TensorFlow's file that names the newest checkpoint of a folder
GLOBAL_STEP = "global_step"  # key of the step in tpudet's checkpoints
BEST_FOLDER = "best"  # in a model_dir: the checkpoint with the best metric


class UnreadableCheckpointError(UserError):
    """A checkpoint is torn, incomplete or gone; the message names the file and the reason."""


class UnavailableCheckpointError(OSError):
    """The disk or the bucket does not give a checkpoint's bytes now: it may well be whole."""


def open_bundle(prefix: str) -> Any:
    """Returns TensorFlow's reader; `prefix` may be local or in a bucket.

    Raises:
        UnreadableCheckpointError: the index is torn, missing or contradicts itself.
        UnavailableCheckpointError, PermissionError: whether it is cannot be known now.
    """
    index = prefix + INDEX_SUFFIX
    with _errors_by_kind(index):
        is_single = not storage.exists(index) and storage.is_file(prefix)  # before TensorFlow 1
        if not is_single:
            check_index(prefix, index)
    path = prefix if is_single else index
    try:
        return _open_reader(prefix)
    except MemoryError:
        raise
    except Exception:  # the reader turns C++ statuses into builtins of many kinds, or of none
        try:
            _restore(prefix, GLOBAL_STEP, "int64")
        except Exception as error:
            if _is_away(error):
                raise _away(path, error) from error
    with _errors_by_kind(path, has_kinds=False):
        return _open_reader(prefix)


def read_bundle_tensor(reader: Any, prefix: str, key: str) -> np.ndarray:
    """Reads a tensor with the reader from `open_bundle`.

    Raises:
        UnreadableCheckpointError: its checksum is wrong.
        UnavailableCheckpointError, PermissionError: whether it is cannot be known now.
    """
    try:
        return np.asarray(reader.get_tensor(key))
    except MemoryError:
        raise
    except Exception:  # as in open_bundle
        pass
    path = f"{prefix}{DATA_SUFFIX}: {key}"
    with _errors_by_kind(path):
        _restore(prefix, key, reader.get_variable_to_dtype_map().get(key, "int64"))
    try:  # not what was just read: it may be of another checkpoint that took the name meanwhile
        return np.asarray(reader.get_tensor(key))
    except Exception as error:
        raise _away(path, error) from error


def _open_reader(prefix: str) -> Any:
    import tensorflow as tf  # late: files of other formats do without

    reader = tf.compat.v1.train.NewCheckpointReader(prefix)
    reader.get_variable_to_dtype_map()  # raises a TypeError at types that do not exist
    return reader


def _restore(prefix: str, key: str, dtype: Any) -> None:
    """Reads a tensor by TensorFlow's operation, whose errors have the kind that the store says."""
    import tensorflow as tf

    with tf.device("CPU:0"):
        tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[key], shape_and_slices=[""], dtypes=[dtype]
        )


@contextmanager
def _errors_by_kind(path: str, *, has_kinds: bool = True) -> Iterator[None]:
    """Tells a torn or missing file from a store that does not give it.

    Args:
        path: what the block reads.
        has_kinds: whether its errors tell so; if not, the file is torn.
    """
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if has_kinds and _is_away(error):
            raise _away(path, error) from error
        raise UnreadableCheckpointError(f"{path}: {_in_words(error)}") from error


def _is_away(error: BaseException | None) -> bool:
    """Whether a disk or a bucket failed or refused, which says nothing of the file."""
    import tensorflow as tf

    if isinstance(error, OSError) and isinstance(error.__cause__, tf.errors.OpError):
        return _is_away(error.__cause__)
    if isinstance(error, OSError):
        is_no_file = error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EINVAL)
        return not (is_no_file or isinstance(error, FileNotFoundError))
    return isinstance(
        error,
        tf.errors.AbortedError  # a bucket, after ten attempts
        | tf.errors.CancelledError
        | tf.errors.DeadlineExceededError
        | tf.errors.PermissionDeniedError
        | tf.errors.ResourceExhaustedError
        | tf.errors.UnauthenticatedError
        | tf.errors.UnavailableError
        | tf.errors.UnknownError,  # a disk's input/output error
    )


def _away(path: str, error: Exception) -> OSError:
    import tensorflow as tf

    refused = PermissionError | tf.errors.PermissionDeniedError | tf.errors.UnauthenticatedError
    words = _in_words(error)
    if isinstance(error, refused):
        return PermissionError(
            f"{path} may not be read: {words}. Nothing was discarded; give this account the right "
            "to read it, and start the same command again"
        )
    return UnavailableCheckpointError(
        f"{path} cannot be read now: {words}. Nothing was discarded; start the same command again. "
        "If the file stays so, restore a copy of it or remove it: the checkpoint before it counts "
        "then"
    )


def _in_words(error: Exception) -> str:
    """The message without the names of operations, which TensorFlow's own puts around it."""
    return re.sub(r"^\{\{.*?\}\} |\s*\[Op:\w+\]$", "", str(error))


def stored_keys(prefix: str) -> frozenset[str]:
    """The keys of a bundle.

    Raises:
        UnreadableCheckpointError: the index is torn or missing.
        UnavailableCheckpointError, PermissionError: as `open_bundle`.
    """
    return frozenset(open_bundle(prefix).get_variable_to_shape_map())
