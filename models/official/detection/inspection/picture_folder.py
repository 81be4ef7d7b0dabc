"""A folder of PNGs and their page that is there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from detection.inspection.objects import InspectionError, name_some
from trainkit.durable_files import list_names

PAGE_NAME = "index.html"
_TEMPORARY = ".temporary"


def check_output(directory: str, *, force: bool) -> None:
    """Refuses an output folder that should not be replaced.

    Raises:
        InspectionError: it is a file, or is there and `force` is False, or holds something that
            this command does not write.
    """
    directory = _plain(directory)
    if tf.io.gfile.exists(directory) and not tf.io.gfile.isdir(directory):
        raise InspectionError(f"--output {directory} is a file; name a folder")
    names = list_names(directory)
    foreign = [name for name in names if name != PAGE_NAME and not name.endswith(".png")]
    if foreign or (names and PAGE_NAME not in names):
        raise InspectionError(
            f"--output {directory} holds what this command did not make, and is left alone: "
            f"{name_some(foreign or names)}; name another folder"
        )
    if names and not force:
        raise InspectionError(f"--output {directory} exists; -f replaces it with all in it")


@contextmanager
def whole_folder(directory: str) -> Iterator[str]:
    """Gives a new folder to write in, which gets the name `directory` when the block ends.

    An error leaves what was there; it is replaced otherwise (`check_output` says whether it may).

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    directory = _plain(directory)
    temporary = directory + _TEMPORARY
    _remove(temporary)
    try:
        tf.io.gfile.makedirs(temporary)
        yield temporary
        _remove(directory)
        tf.io.gfile.rename(temporary, directory)
    except BaseException:
        _remove(temporary)
        raise


def write_bytes(directory: str, name: str, content: bytes) -> None:
    """Writes a file into a folder that is not there yet under its own name."""
    with tf.io.gfile.GFile(os.path.join(directory, name), "wb") as file:
        file.write(content)


def _plain(directory: str) -> str:
    return directory.rstrip("/") or "/"


def _remove(directory: str) -> None:
    if tf.io.gfile.isdir(directory):
        tf.io.gfile.rmtree(directory)
