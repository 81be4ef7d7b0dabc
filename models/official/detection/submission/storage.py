"""Files by path, local or in a bucket, for commands that need no TensorFlow otherwise.

A local path is opened by Python itself. TensorFlow's file systems are imported only for a path
with a scheme, such as gs://bucket/file.
"""

import os
from typing import IO, Literal


def is_file(path: str) -> bool:
    """Whether there is a file of this very name.

    Where folders are but parts of names (ram://), `a` exists as a folder beside a file `a.tmp`;
    such a folder does not count.
    """
    if not is_remote(path):
        return os.path.isfile(path)
    import tensorflow as tf

    return tf.io.gfile.exists(path) and not tf.io.gfile.isdir(path)


def open_file(path: str, mode: Literal["rb", "w", "wb"]) -> IO:
    """Opens a file to read or write bytes, or to write text (UTF-8, line ends as written)."""
    if is_remote(path):
        import tensorflow as tf

        return tf.io.gfile.GFile(path, mode)
    return open(path, mode, encoding="utf-8", newline="") if mode == "w" else open(path, mode)


def replace_file(source: str, target: str) -> None:
    """Gives `source` the name `target`, in the place of what had it."""
    if is_remote(target):
        import tensorflow as tf

        tf.io.gfile.rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def remove_file(path: str) -> None:
    """Removes a file; one that is already gone is no error."""
    if is_remote(path):
        import tensorflow as tf

        if tf.io.gfile.exists(path):
            tf.io.gfile.remove(path)
    elif os.path.exists(path):
        os.remove(path)


def is_remote(path: str) -> bool:
    """Whether a path has a scheme, such as gs://."""
    return "://" in path
