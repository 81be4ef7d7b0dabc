"""Reads image files in order, with read-ahead."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import open_regular_file

# Files opened ahead. Two processes that waited for each file read 0.9 GB/s from a disk that gave
# 1.6 GB/s with eight ahead. If all files are cached in memory, it is no slower.
_AHEAD = 8

_Opened = FileIO | bytes | OSError


def read_in_turn(directories: Sequence[str], files: Iterable[str]) -> Iterator[bytes | OSError]:
    """Yields the content of each file, from the first directory that has it.

    A file that cannot be read yields its error instead, FileNotFoundError if no directory has it,
    and the others follow.
    """
    opened: deque[_Opened] = deque()
    try:
        for file in files:
            opened.append(_open(directories, file))
            if len(opened) > _AHEAD:
                yield _read(opened.popleft())
        while opened:
            yield _read(opened.popleft())
    finally:
        for one in opened:
            if isinstance(one, FileIO):
                one.close()


def _open(directories: Sequence[str], file: str) -> _Opened:
    """Returns a local file that is being read ahead, or the content of a remote file."""
    for directory in directories:
        path = os.path.join(directory, file)
        try:
            if "://" in path:
                with storage.open_file(path, "rb") as stream:
                    return stream.read()
            local = open_regular_file(path)
            if hasattr(os, "posix_fadvise"):  # not on macOS
                os.posix_fadvise(local.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            return local
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return error
    return FileNotFoundError(file)


def _read(opened: _Opened) -> bytes | OSError:
    if not isinstance(opened, FileIO):
        return opened
    with opened:
        try:
            return opened.read()
        except OSError as error:
            return error
