"""Files on disks and in buckets, and files that appear whole or not at all.

A local path is opened by Python itself; TensorFlow's file systems are imported only for a path
with a scheme, such as gs://bucket/file. In a bucket an object appears at once and whole when its
upload ends. On a disk the data and the folder are flushed with `fsync`, because a power cut could
otherwise leave a renamed, empty file.
"""

import contextlib
import errno
import glob as builtin_glob
import os
import stat as builtin_stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any, Literal, NamedTuple

from tpudet.trainkit.files import exclusive, remote
from tpudet.trainkit.files.exclusive import NO_WAIT, TEMPORARY_SUFFIX, create_temporary, is_at
from tpudet.trainkit.files.remote import RemoteFile, gfile, os_errors, whole_object

__all__ = ["TEMPORARY_SUFFIX"]

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk, a quota, a file system

_MAX_WAYS = 100  # that lead a walk to one folder


class FileState(NamedTuple):
    """Size, time and kind of a file, known without reading it."""

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
    return _is_there(path, as_folder=False) if is_remote(path) else os.path.isfile(path)


def is_folder(path: str) -> bool:
    """Whether there is a folder of this name."""
    return _is_there(path, as_folder=True) if is_remote(path) else os.path.isdir(path)


def _is_there(path: str, *, as_folder: bool) -> bool:
    """As `is_file` and `is_folder`, in a bucket, where `isdir` takes any error for a no."""
    try:
        return stat(path).is_folder == as_folder
    except FileNotFoundError:
        return False


def exists(path: str) -> bool:
    """Whether there is a file or folder of this name."""
    if not is_remote(path):
        return os.path.exists(path)
    with os_errors():
        return gfile().exists(path)


def stat(path: str) -> FileState:
    """Size and time of a file or folder.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be looked at.
    """
    if not is_remote(path):
        state = os.stat(path)
        return FileState(state.st_size, state.st_mtime_ns, os.path.isdir(path))
    with os_errors():
        state = gfile().stat(path)
    return FileState(state.length, state.mtime_nsec, state.is_directory)


def make_folder(path: str) -> None:
    """Makes a folder and those above it, where they are missing."""
    if is_remote(path):
        remote.make_folders(path)
    else:
        os.makedirs(path, exist_ok=True)


def open_file(path: str, mode: Literal["rb", "w", "wb", "a"]) -> Any:
    """Opens a file to read or write bytes, or to write UTF-8 text; line ends are left as they are.

    Raises:
        FileNotFoundError: it does not exist, at the latest on the first read.
        OSError: it cannot be opened otherwise.
    """
    if is_remote(path):
        return RemoteFile(path, mode)
    if "b" in mode:
        return open(path, mode)
    return open(path, mode, encoding="utf-8", newline="")


def open_bytes(path: str) -> Any:
    """Opens a file to read bytes; a FIFO, which may never have a writer, is an error.

    Raises:
        OSError: it cannot be opened, or is not a file.
    """
    return open_file(path, "rb") if is_remote(path) else open_regular_file(path)


def open_regular_file(path: str) -> FileIO:
    """Opens a local file to read bytes; a FIFO, which may never have a writer, is an error.

    Raises:
        OSError: it cannot be opened, or is not a file.
    """
    descriptor = os.open(path, os.O_RDONLY | NO_WAIT)
    mode = os.fstat(descriptor).st_mode  # FileIO would call a folder by its number
    if builtin_stat.S_ISREG(mode):
        return FileIO(descriptor)
    os.close(descriptor)
    if builtin_stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a device or FIFO, not a file", path)


def rename(source: str, target: str) -> None:
    """Renames a file, replacing `target`."""
    if is_remote(target):
        with os_errors():
            gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)


def copy(source: str, target: str) -> None:
    """Copies a file, replacing `target`, from any place to any other."""
    if is_remote(source) or is_remote(target):
        with os_errors():
            gfile().copy(source, target, overwrite=True)
    else:
        import shutil  # late here and below: it brings three compressors, 4 ms

        shutil.copyfile(source, target)


def remove(path: str) -> None:
    """Removes a file; FileNotFoundError where there is none."""
    if is_remote(path):
        with os_errors():
            gfile().remove(path)
    else:
        os.remove(path)


def remove_if_there(path: str) -> None:
    """Removes a file; one that is already gone is not an error."""
    with contextlib.suppress(FileNotFoundError):
        remove(path)


def remove_folder(path: str) -> None:
    """Removes a folder and its content; a link is removed, never what it points at."""
    if is_remote(path):
        with os_errors():
            gfile().rmtree(path)
    elif os.path.islink(path):
        os.remove(path)
    else:
        import shutil

        shutil.rmtree(path)


def list_folder(path: str) -> list[str]:
    """Sorted names in a folder without the `/` that buckets append.

    Raises:
        OSError: it does not exist or is not a folder.
    """
    if not is_remote(path):
        return sorted(os.listdir(path))
    return sorted(name.rstrip("/") for name in remote.list_objects(path))


def list_names(path: str) -> list[str]:
    """As `list_folder`; empty where the folder is missing."""
    try:
        return list_folder(path)
    except FileNotFoundError:
        return []


def list_kinds(path: str) -> tuple[list[str], list[str]]:
    """Sorted names of the folders and of the files in a folder; none where it is missing."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found = remote.walk(path) if is_remote(path) else os.walk(path, onerror=fail)
    _, folders, files = next(iter(found), (path, [], []))
    return sorted(folders), sorted(files)


def walk(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Like `os.walk`: each folder from the top down, with its folders and files.

    Links to folders are followed, but for one that leads back to a folder around it.

    Raises:
        OSError: a folder of a bucket cannot be listed; one of the disk is reached in more than
            `_MAX_WAYS` ways: links to folders with links can stand for more than a walk can end
            with.
    """
    yield from remote.walk(path) if is_remote(path) else _walk_disk(path, (), Counter())


def _walk_disk(
    path: str, around: tuple[str, ...], visits: Counter[str]
) -> Iterator[tuple[str, list[str], list[str]]]:
    real = os.path.realpath(path)
    for folder, folders, files in os.walk(path):
        here = os.path.normpath(os.path.join(real, os.path.relpath(folder, path)))
        visits[here] += 1
        if visits[here] > _MAX_WAYS:
            reason = f"links lead to this folder in more than {_MAX_WAYS} ways"
            raise OSError(errno.ELOOP, reason, folder)
        yield folder, folders, files
        inner = (*around, here)
        for link in filter(os.path.islink, (os.path.join(folder, name) for name in folders)):
            target = os.path.join(os.path.realpath(link), "")
            if not any(os.path.join(one, "").startswith(target) for one in inner):
                yield from _walk_disk(link, inner, visits)


def glob(pattern: str) -> list[str]:
    """Sorted paths that match a pattern of the shell."""
    if is_remote(pattern):
        with os_errors():
            return sorted(gfile().glob(pattern))
    return sorted(builtin_glob.glob(pattern))


def sync(path: str) -> None:
    """Flushes a local file or folder to the disk; does nothing for `scheme://` paths."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = path
        # Some file systems, FUSE's among them, cannot flush a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: str, mode: Literal["w", "wb"]) -> Iterator[Any]:
    """Opens a file that gets its name when the block ends; an error leaves what was there.

    A reader sees the old content or the new, never a part, also where several processes write the
    same file: each has a temporary file of its own, and the last to end wins. Where `path` is a
    link, the file that it points to is replaced.

    Args:
        path: the final name.
        mode: text (UTF-8, line ends as written) or bytes.

    Raises:
        OSError: the file cannot be written, or `path` is a folder, a device or a FIFO; the
            temporary file is removed.
    """
    if is_remote(path):
        with whole_object(path, mode) as file:
            yield file
        return
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        is_folder = os.path.isdir(path)
        number, kind = (errno.EISDIR, "folder") if is_folder else (errno.EINVAL, "device or FIFO")
        raise OSError(number, f"it is a {kind}, not a file that can be replaced", path)
    try:
        temporary, descriptor = create_temporary(path)
    except OSError as error:
        name_file(error, path)
        raise
    try:
        with exclusive.open_descriptor(descriptor, temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            if not is_at(descriptor, temporary):
                raise FileNotFoundError(errno.ENOENT, "another process removed it", temporary)
            rename(temporary, path)
        sync(os.path.dirname(path))
    except BaseException as error:
        remove_if_there(temporary)
        if isinstance(error, OSError):
            name_file(error, path)
        raise


def name_file(error: OSError, path: str) -> None:
    """Lets an error of writing name the file that the user knows.

    It names a temporary file, or none: a full disk is found by calls that know only a descriptor.
    """
    is_unnamed = error.filename is None and error.errno in NO_ROOM
    if is_unnamed or str(error.filename).endswith(TEMPORARY_SUFFIX):
        error.filename = path
        del error.filename2


def write_text(path: str, text: str) -> None:
    """Replaces a text file as `whole_file` does."""
    with whole_file(path, "w") as file:
        file.write(text)


def read_text(path: str) -> str | None:
    """The content of a text file, undecodable bytes replaced; None where it does not exist.

    Raises:
        OSError: it cannot be read, or is a folder, a device or a FIFO.
    """
    try:
        with open_bytes(path) as file:
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None


def reason(error: OSError) -> str:
    """Returns the cause of an error without the path, which messages name themselves."""
    return error.strerror or str(error)
