"""Opens files that the user named; errors say which argument named them."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Any

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage

# A shell's <(command) and standard input. Anywhere else a device or FIFO, which a file of others
# can name, has no end or no writer.
_PIPES = ("/dev/fd/", "/proc/self/fd/", "/dev/stdin")


@contextmanager
def open_input(path: str, name: str) -> Iterator[Any]:
    """Opens a file to read bytes.

    Args:
        path: the file, local or in a bucket.
        name: the argument that named it, such as `--classes`, or another name for messages.

    Raises:
        UserError: the file is missing, is a directory, device or FIFO other than a pipe of the
            shell, or may not be read. This may only show while the block reads.
    """
    try:
        if storage.is_folder(path):
            raise UserError(f"{name} {path} is a directory; a file is expected.")
        with _open(path) as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{name} {path} does not exist.") from None
    except OSError as error:
        raise UserError(f"{name} {path} cannot be read: {storage.reason(error)}") from error


def _open(path: str) -> Any:
    if storage.is_remote(path) or path.startswith(_PIPES):
        return storage.open_file(path, "rb")
    return BufferedReader(storage.open_regular_file(path))


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
