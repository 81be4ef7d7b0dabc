"""Locks on open files, and temporary files that no other process writes to.

A lock is the kernel's `flock`, released however its owner ends: a temporary file that nobody locks
was left by a process that was killed, and the next writer of the same file removes it.
"""

import contextlib
import os
import stat
import sys
import zlib
from typing import Any

from tpudet.trainkit.files.processes import boot_id

if sys.platform != "win32":
    import fcntl

TEMPORARY_SUFFIX = ".temporary"

NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for the other end of a FIFO
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | NO_WAIT  # a link at the very end is not followed

_MAX_WRITERS = 1000  # at once, of one file


def lock_file(descriptor: int) -> bool | None:
    """Locks an open file against every other opener, without waiting.

    Returns:
        Whether it is locked now: False if another process holds the lock, None if this file
        system or platform has no locks.
    """
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_at(descriptor: int, path: str) -> bool:
    """Whether `path` still names the open file, which another process may have removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def create_temporary(target: str) -> tuple[str, int]:
    """Creates a locked file beside `target` that no other process has open for writing.

    Returns:
        Its path and a descriptor open for writing. The file is this process's own until the
        descriptor is closed.

    Raises:
        OSError: it cannot be created.
    """
    # Other machines that share the disk may not see the locks, so their files have other names.
    machine = f"{zlib.crc32(boot_id().encode()):08x}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINKS
    number = 0
    while number < _MAX_WRITERS:
        path = f"{target}.{machine}-{number}{TEMPORARY_SUFFIX}"
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            number += not _remove_abandoned(path)
            continue
        except BaseException:  # a signal while it was created: nobody has locked it yet
            _remove_abandoned(path)
            raise
        try:
            # Another process may have taken the file for abandoned before it was locked.
            if lock_file(descriptor) is not False and is_at(descriptor, path):
                return path, descriptor
        except BaseException:  # a signal, too
            os.unlink(path)
            raise
        os.close(descriptor)
        number += 1
    raise FileExistsError(
        f"{_MAX_WRITERS} files {target}.*{TEMPORARY_SUFFIX} are in the way: remove them"
    )


def open_descriptor(descriptor: int, path: str, mode: str) -> Any:
    """Opens the file from `create_temporary` for bytes or UTF-8 text."""

    def opener(path: str, flags: int) -> int:
        return descriptor

    if "b" in mode:
        return open(path, mode, opener=opener)
    return open(path, mode, encoding="utf-8", newline="", opener=opener)


def _remove_abandoned(path: str) -> bool:
    """Removes a file that no living process has locked; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_LINKS)
    except FileNotFoundError:
        return True
    except OSError:  # a link, or another user's file
        return False
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if not is_file or lock_file(descriptor) is not True or not is_at(descriptor, path):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        return True
    except PermissionError:  # another user's file in a sticky folder, such as /tmp
        return False
    finally:
        os.close(descriptor)
