"""Digests of what a preparation depends on: files, folders, its own code."""

import functools
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import list_names, read_text

_BLOCK_BYTES = 1 << 22
_STAT_THREADS = 16
_SETTLED_NANOSECONDS = 2 * 10**9


def file_digest(path: str) -> str:
    """SHA-256 of a file, or of the names and sizes of a folder's files.

    Raises:
        UserError: there is no such file or folder.
    """
    try:
        state = storage.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    if state.is_folder:
        return _folder_digest(path)
    # A fresh file may change again within the tick of its time stamp; ram:// has no times at all.
    settled = 0 < state.modified_ns < time.time_ns() - _SETTLED_NANOSECONDS
    digest = _remembered_digest if settled else _content_digest
    return digest(path, state.size, state.modified_ns)


def _content_digest(path: str, length: int, mtime: int) -> str:
    """The digest of the file in this state."""
    digest = hashlib.sha256()
    with storage.open_file(path, "rb") as file:
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
        sizes = [state.size for state in pool.map(storage.stat, paths)]
    return hashlib.sha256(json.dumps([names, sizes]).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """SHA-256 of the sources of tpudet.detection.preparation and tpudet.detection.submission."""
    digest = hashlib.sha256()
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (here, os.path.join(os.path.dirname(here), "submission")):
        for name in list_names(folder):
            if name.endswith((".py", ".pyx")):
                digest.update(f"{name}\n{read_text(os.path.join(folder, name))}\n".encode())
    return digest.hexdigest()
