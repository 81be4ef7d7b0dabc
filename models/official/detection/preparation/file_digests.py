"""Digests of what a preparation depends on: files, folders, its own code."""

import functools
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from detection.preparation.annotations import PreparationError
from trainkit.durable_files import list_names, read_text

_BLOCK_BYTES = 1 << 22
_STAT_THREADS = 16
_SETTLED_NANOSECONDS = 2 * 10**9


def file_digest(path: str) -> str:
    """SHA-256 of a file, or of the names and sizes of a folder's files.

    Raises:
        PreparationError: there is no such file or folder.
    """
    try:
        state = tf.io.gfile.stat(path)
    except tf.errors.NotFoundError:
        raise PreparationError(f"{path} does not exist.") from None
    if state.is_directory:
        return _folder_digest(path)
    # A fresh file may change again within the tick of its time stamp; ram:// has no times at all.
    settled = 0 < state.mtime_nsec < time.time_ns() - _SETTLED_NANOSECONDS
    digest = _remembered_digest if settled else _content_digest
    return digest(path, state.length, state.mtime_nsec)


def _content_digest(path: str, length: int, mtime: int) -> str:
    """The digest of the file in this state."""
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


_remembered_digest = functools.lru_cache(maxsize=256)(
    _content_digest
)  # gigabytes, read by many steps


def _folder_digest(path: str) -> str:
    names = list_names(path)
    with ThreadPoolExecutor(_STAT_THREADS) as pool:  # in a bucket each waits for an answer
        paths = [os.path.join(path, name) for name in names]
        sizes = [state.length for state in pool.map(tf.io.gfile.stat, paths)]
    return hashlib.sha256(json.dumps([names, sizes]).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """SHA-256 of the sources of detection.preparation and detection.submission."""
    digest = hashlib.sha256()
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (here, os.path.join(os.path.dirname(here), "submission")):
        for name in list_names(folder):
            if name.endswith((".py", ".pyx")):
                digest.update(f"{name}\n{read_text(os.path.join(folder, name))}\n".encode())
    return digest.hexdigest()
