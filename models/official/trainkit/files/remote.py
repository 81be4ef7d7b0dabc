"""Files in buckets: TensorFlow's file systems, with Python's own errors.

TensorFlow is imported at the first use.
"""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from tpudet.trainkit.files.exclusive import TEMPORARY_SUFFIX
from tpudet.trainkit.files.processes import this_process

# On a connection where nothing comes, before TensorFlow gives it up and asks again. Its reader of
# checkpoints holds Python's lock meanwhile, so that no other thread gives a sign of life.
STALL_SECONDS = 60

_BLOCK_BYTES = 1 << 20  # read at once
_GOOGLE = "gs://"


class RemoteFile:
    """A file in a bucket whose errors are Python's own."""

    def __init__(self, path: str, mode: Literal["rb", "w", "wb", "a"]) -> None:
        self._file = gfile().GFile(path, mode)
        if "w" in mode:
            with os_errors():
                # It opens at the first write, and there may be none.
                self._file.write(b"" if "b" in mode else "")

    def __enter__(self) -> "RemoteFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        with os_errors():
            yield from self._file

    def read(self, size: int | None = -1) -> bytes:
        """Reads up to `size` bytes; to the end if it is negative or None.

        To the end means until nothing comes: TensorFlow asks for the size first and keeps what it
        heard for 5 s, in which another host may have put a longer file there.
        """
        with os_errors():
            if size is not None and size >= 0:
                return self._file.read(size)
            blocks = []
            while block := self._file.read(_BLOCK_BYTES):
                blocks.append(block)
        return b"".join(blocks)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._file, name)

        def call(*arguments: Any) -> Any:
            with os_errors():
                return attribute(*arguments)

        return call if callable(attribute) else attribute


def gfile() -> Any:
    """TensorFlow's module of file operations."""
    return _tensorflow().io.gfile


def _tensorflow() -> Any:
    """Returns TensorFlow, imported without Keras, which file operations do not need.

    It imports Keras, if it can, and that fixes the backend of Keras, which a command chooses only
    after it has read its config.
    """
    has_choice = "tensorflow" not in sys.modules and "keras" not in sys.modules
    if has_choice:
        sys.modules["keras"] = None  # pyright: ignore[reportArgumentType]
    try:
        import tensorflow as tf
    finally:
        if has_choice:
            sys.modules.pop("keras", None)  # another thread may have been here as well
    return tf


@contextmanager
def os_errors() -> Iterator[None]:
    """Turns TensorFlow's errors of files into Python's."""
    tf = _tensorflow()
    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.PermissionDeniedError as error:
        raise PermissionError(error.message) from error
    except tf.errors.UnimplementedError as error:
        if "File system scheme" in error.message:
            known = ", ".join(f"{name}://" for name in gfile().get_registered_schemes() if name)
            raise OSError(
                f"{error.message}; paths are those of this machine or begin with {known}"
            ) from error
        raise NotImplementedError(error.message) from error
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


def make_folders(path: str) -> None:
    """As `storage.make_folder`, in a bucket.

    Google's roles for objects lack the right to look at the bucket itself, which `makedirs` does
    before it makes a folder of the first level.
    """
    with os_errors():
        if not path.startswith(_GOOGLE):
            gfile().makedirs(path)
            return
        missing, folder = [], path.rstrip("/")
        while "/" in folder.removeprefix(_GOOGLE) and not gfile().isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(_tensorflow().errors.AlreadyExistsError):
                gfile().mkdir(folder)


def list_objects(path: str) -> list[str]:
    """Names in a folder of a bucket; in Google's those of folders end in `/`.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be listed. TensorFlow says of that, too, that there is none.
    """
    with os_errors():
        try:
            return gfile().listdir(path)
        except _tensorflow().errors.NotFoundError:
            gfile().exists(path)  # raises the error that was in the way
            raise


def _list_kinds(path: str) -> tuple[list[str], list[str]]:
    """Names of the folders and of the files in a folder of a bucket.

    One listing tells them apart in Google's, where a question each would take 50 ms an object.
    """
    names = [name for name in list_objects(path) if name.strip("/")]
    if path.startswith(_GOOGLE):
        are_folders = [name.endswith("/") for name in names]
    else:
        with os_errors():
            are_folders = [gfile().isdir(os.path.join(path, name)) for name in names]
    folders, files = (
        [
            name.rstrip("/")
            for name, is_folder in zip(names, are_folders, strict=True)
            if is_folder == kind
        ]
        for kind in (True, False)
    )
    return folders, files


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `storage.walk`, in a bucket."""
    try:
        folders, files = _list_kinds(path)
    except FileNotFoundError:
        return
    yield path, folders, files
    for folder in folders:
        yield from walk(os.path.join(path, folder))


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turns errors of TensorFlow's own writers into Python's, which name a file.

    Args:
        path: the file or folder that the user knows; TensorFlow's message has a temporary name.
    """
    tf = _tensorflow()
    try:
        yield
    except tf.errors.OpError as error:
        message = error.message
        # "FILE; REASON" where the system refused, between names of operations.
        for number in errno.errorcode:
            if f"; {os.strerror(number)}" in message:
                raise OSError(number, os.strerror(number), path) from error
        raise OSError(f"{path} cannot be written: {message}") from error


@contextmanager
def whole_object(path: str, mode: Literal["w", "wb"]) -> Iterator[RemoteFile]:
    """As `storage.whole_file`, in a bucket."""
    process = this_process()
    owner = f"{process.host}-{process.process}-{time.monotonic_ns():x}"
    temporary = f"{path}.{owner}{TEMPORARY_SUFFIX}"
    try:
        with RemoteFile(temporary, mode) as file:
            yield file
        with os_errors():
            gfile().rename(temporary, path, overwrite=True)
    except BaseException:
        with contextlib.suppress(FileNotFoundError), os_errors():
            gfile().remove(temporary)
        raise
