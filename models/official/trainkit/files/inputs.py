"""Opens files that the user named; errors say which argument named them."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.exclusive import NO_WAIT


@contextmanager
def open_input(path: str, name: str) -> Iterator[Any]:
    """Opens a file to read bytes.

    Args:
        path: the file, local or in a bucket.
        name: the argument that named it, such as `--classes`, or another name for messages.

    Raises:
        UserError: the file is missing, is a directory, or may not be read. This may only show
            while the block reads.
    """
    try:
        if storage.is_folder(path):
            raise UserError(f"{name} {path} is a directory; a file is expected.")
        with storage.open_file(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{name} {path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{name} {path} cannot be read: {storage.reason(error)}") from error


def open_bytes(path: str) -> Any:
    """Opens a file to read bytes; a FIFO, which may never have a writer, is an error.

    Raises:
        OSError: it cannot be opened, or is not a file.
    """
    return storage.open_file(path, "rb") if storage.is_remote(path) else open_regular_file(path)


def open_regular_file(path: str) -> FileIO:
    """Opens a local file to read bytes; a FIFO, which may never have a writer, is an error.

    Raises:
        OSError: it cannot be opened, or is not a file.
    """
    file = FileIO(os.open(path, os.O_RDONLY | NO_WAIT))
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode):
        return file
    file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a device or FIFO, not a file", path)


def read_input(path: str, name: str) -> bytes:
    """Reads a whole file; raises as `open_input` does."""
    with open_input(path, name) as file:
        return file.read()


def read_input_text(path: str, name: str) -> str:
    """As `read_input`, decoded from UTF-8; a byte order mark is dropped."""
    try:
        return read_input(path, name).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{name} {path} is not UTF-8 text: {error}.") from error
