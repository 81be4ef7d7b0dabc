"""Reads TensorFlow V2 tensor bundles, the format of checkpoints and of a SavedModel's variables.

A bundle is the pair `<prefix>.data-00000-of-00001` and `<prefix>.index`. On `ram://`
`tf.train.list_variables` takes a prefix for a folder; these functions do not.
"""

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


def open_bundle(prefix: str) -> Any:
    """Returns TensorFlow's reader; `prefix` may be local or in a bucket.

    Raises:
        UnreadableCheckpointError: the index is torn, missing or contradicts itself.
    """
    import tensorflow as tf  # late: files of other formats do without

    index = prefix + INDEX_SUFFIX
    is_single = not storage.exists(index) and storage.is_file(prefix)  # before TensorFlow 1
    try:
        if not is_single:
            check_index(prefix, index)
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        reader.get_variable_to_dtype_map()  # raises a TypeError at types that do not exist
        return reader
    except Exception as error:  # the reader turns C++ statuses into builtins of many kinds
        raise UnreadableCheckpointError(f"{prefix if is_single else index}: {error}") from error


def read_bundle_tensor(reader: Any, prefix: str, key: str) -> np.ndarray:
    """Reads a tensor with the reader from `open_bundle`.

    Raises:
        UnreadableCheckpointError: its checksum is wrong.
    """
    try:
        return np.asarray(reader.get_tensor(key))
    except Exception as error:  # as in open_bundle
        raise UnreadableCheckpointError(f"{prefix}{DATA_SUFFIX}: {key}: {error}") from error


def stored_keys(prefix: str) -> frozenset[str]:
    """The keys of a bundle.

    Raises:
        UnreadableCheckpointError: the index is torn or missing.
    """
    return frozenset(open_bundle(prefix).get_variable_to_shape_map())
