"""Files on disks and in buckets, and files that appear whole or not at all.

A local path is opened by Python itself; TensorFlow's file systems are imported only for a path
with a scheme, such as gs://bucket/file. In a bucket an object appears at once and whole when its
upload ends. On a disk the data and the folder are flushed with `fsync`, because a power cut could
otherwise leave a renamed, empty file.
"""

import contextlib
import glob as builtin_glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

TEMPORARY_SUFFIX = ".temporary"


class FileState(NamedTuple):
    """What is known of a file without reading it."""

    size: int  # bytes
    modified_ns: int  # nanoseconds since 1970; 0 where the store keeps no times
    is_folder: bool


def is_remote(path: str) -> bool:
    """Whether a path has a scheme, such as gs://."""
    return "://" in path


def is_file(path: str) -> bool:
    """Whether there is a file of this very name.

    Where folders are only parts of names (ram://), `a` exists as a folder beside a file `a.tmp`;
    such a folder does not count.
    """
    if not is_remote(path):
        return os.path.isfile(path)
    gfile = _gfile()
    return gfile.exists(path) and not gfile.isdir(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder of this name."""
    return _gfile().isdir(path) if is_remote(path) else os.path.isdir(path)


def exists(path: str) -> bool:
    """Whether there is a file or folder of this name."""
    return _gfile().exists(path) if is_remote(path) else os.path.exists(path)


def stat(path: str) -> FileState:
    """Size and time of a file or folder.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be looked at.
    """
    if not is_remote(path):
        state = os.stat(path)
        return FileState(state.st_size, state.st_mtime_ns, os.path.isdir(path))
    with _os_errors():
        remote = _gfile().stat(path)
    return FileState(remote.length, remote.mtime_nsec, remote.is_directory)


def make_folder(path: str) -> None:
    """Makes a folder and those above it, where they are missing."""
    if is_remote(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def open_file(path: str, mode: Literal["r", "rb", "w", "wb", "a"]) -> Any:
    """Opens a file of bytes or of UTF-8 text; line ends are left as they are.

    Raises:
        FileNotFoundError: it does not exist, at the latest on the first read.
        OSError: it cannot be opened otherwise.
    """
    if is_remote(path):
        return _RemoteFile(path, mode)
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", newline="")


def rename(source: str, target: str) -> None:
    """Renames a file, replacing `target`."""
    if is_remote(target):
        with _os_errors():
            _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def copy(source: str, target: str) -> None:
    """Copies a file, replacing `target`, from any place to any other."""
    if is_remote(source) or is_remote(target):
        with _os_errors():
            _gfile().copy(source, target, overwrite=True)
    else:
        shutil.copyfile(source, target)


def remove(path: str) -> None:
    """Removes a file; FileNotFoundError where there is none."""
    if is_remote(path):
        with _os_errors():
            _gfile().remove(path)
    else:
        os.remove(path)


def remove_if_there(path: str) -> None:
    """Removes a file; one that is already gone is no error."""
    with contextlib.suppress(FileNotFoundError):
        remove(path)


def remove_folder(path: str) -> None:
    """Removes a folder and its content; a link is removed, never what it points at."""
    if is_remote(path):
        with _os_errors():
            _gfile().rmtree(path)
    elif os.path.islink(path):
        os.remove(path)
    else:
        shutil.rmtree(path)


def list_folder(path: str) -> list[str]:
    """Sorted names in a folder without the `/` that buckets append.

    Raises:
        OSError: it does not exist or is no folder.
    """
    if not is_remote(path):
        return sorted(os.listdir(path))
    with _os_errors():
        return sorted(name.rstrip("/") for name in _gfile().listdir(path))


def list_names(path: str) -> list[str]:
    """As `list_folder`; empty where the folder is missing."""
    try:
        return list_folder(path)
    except FileNotFoundError:
        return []


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Like `os.walk`: each folder from the top down, with its folders and files."""
    if not is_remote(path):
        yield from os.walk(path)
        return
    with _os_errors():
        yield from _gfile().walk(path)


def glob(pattern: str) -> list[str]:
    """Sorted paths that match a pattern of the shell."""
    if is_remote(pattern):
        with _os_errors():
            return sorted(_gfile().glob(pattern))
    return sorted(builtin_glob.glob(pattern))


def sync(path: str) -> None:
    """Flushes a local file or folder to the disk; does nothing for `scheme://` paths."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: str, mode: Literal["w", "wb"], *, owner: str = "") -> Iterator[Any]:
    """Opens a file that gets its name when the block ends; an error leaves what was there.

    A reader sees the old content or the new, never a part.

    Args:
        path: the final name.
        mode: text (UTF-8, line ends as written) or bytes.
        owner: part of the temporary name, where two processes may write the same file.

    Raises:
        OSError: the file cannot be written; the temporary one is removed.
    """
    temporary = f"{path}{'.' if owner else ''}{owner}{TEMPORARY_SUFFIX}"
    remove_if_there(temporary)  # `ram://` appends to a file opened for writing
    try:
        with open_file(temporary, mode) as file:
            yield file
        sync(temporary)
        rename(temporary, path)
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
        with open_file(path, "rb") as file:
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None


def reason(error: OSError) -> str:
    """What went wrong, without the path that a message has named already."""
    return error.strerror or str(error)


class _RemoteFile:
    """A file in a bucket whose errors are Python's own."""

    def __init__(self, path: str, mode: str) -> None:
        self._file = _gfile().GFile(path, mode)
        if "w" in mode:
            with _os_errors():
                # It opens at the first write, and there may be none.
                self._file.write(b"" if "b" in mode else "")

    def __enter__(self) -> "_RemoteFile":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        with _os_errors():
            yield from self._file

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._file, name)

        def call(*arguments: Any) -> Any:
            with _os_errors():
                return attribute(*arguments)

        return call if callable(attribute) else attribute


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turns TensorFlow's errors of files into Python's."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(error.message) from error
    except tf.errors.PermissionDeniedError as error:
        raise PermissionError(error.message) from error
    except tf.errors.UnimplementedError as error:
        raise NotImplementedError(error.message) from error
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
