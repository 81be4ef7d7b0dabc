"""Files that appear whole or not at all, on disks and in buckets.

Everything goes through `tf.io.gfile`. The one exception is `fsync`, which gfile does not offer:
it is called on local paths only, where a power cut could otherwise leave a renamed, empty file.
In a bucket an object appears at once and whole when its upload ends, so nothing is lost there.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import tensorflow as tf

TEMPORARY_SUFFIX = ".temporary"


def sync(path: str) -> None:
    """Flushes a local file or folder to the disk; does nothing for `scheme://` paths."""
    if "://" in path:
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_names(directory: str) -> list[str]:
    """Sorted names in a folder without the `/` that buckets append; empty where it is missing."""
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    except tf.errors.NotFoundError:
        return []


def remove_if_there(path: str) -> None:
    """Removes a file; one that is already gone is no error."""
    try:
        tf.io.gfile.remove(path)
    except tf.errors.NotFoundError:
        return


@contextmanager
def whole_file(path: str, mode: Literal["w", "wb"], *, owner: str = "") -> Iterator[Any]:
    """Opens a file that gets its name when the block ends; an error leaves what was there.

    A reader sees the old content or the new, never a part.

    Args:
        path: the final name.
        mode: text (UTF-8, line ends as written) or bytes.
        owner: part of the temporary name, where two processes may write the same file.

    Raises:
        tf.errors.OpError: the file cannot be written; the temporary one is removed.
    """
    temporary = f"{path}{'.' if owner else ''}{owner}{TEMPORARY_SUFFIX}"
    remove_if_there(temporary)  # `ram://` appends to a file opened for writing
    try:
        with tf.io.gfile.GFile(temporary, mode) as file:
            file.write("" if mode == "w" else b"")  # it opens at the first write: there may be none
            yield file
        sync(temporary)
        tf.io.gfile.rename(temporary, path, overwrite=True)
        sync(os.path.dirname(path) or ".")
    except BaseException:
        remove_if_there(temporary)
        raise


def write_text(path: str, text: str, *, owner: str = "") -> None:
    """Replaces a text file as `whole_file` does."""
    with whole_file(path, "w", owner=owner) as file:
        file.write(text)


def read_text(path: str) -> str | None:
    """The content of a text file, undecodable bytes replaced; None where it does not exist."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read().decode("utf-8", errors="replace")
    except tf.errors.NotFoundError:
        return None
