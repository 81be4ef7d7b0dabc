"""Gives a finished folder its final name, on a disk or in a bucket."""

import contextlib
import errno
import os
import shutil

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import refuse_whole_bucket
from tpudet.trainkit.files.storage import TEMPORARY_SUFFIX

_MAX_SYNCS = 1000  # files; the system's whole cache is flushed for more


def publish_folder(temporary: str, target: str, *, last: str = "") -> None:
    """Gives a finished folder its final name, replacing the folder that has it.

    On a disk the new folder is flushed, the old one is renamed aside to
    `<target>.replaced.temporary`, and it is removed once the new one has its name. Where `target`
    is a link, the folder that it points to is replaced and the link stays. In a bucket, which
    cannot rename folders, the files are moved one by one; an error on the way leaves neither folder
    whole, and no `last`.

    Args:
        temporary: the finished folder; best made beside `target`.
        target: the final name.
        last: the file that makes the folder whole, moved last in a bucket.

    Raises:
        OSError: it cannot be written, or `target` is a file. On a disk a folder that had the name
            has it still.
    """
    target = target.rstrip("/")
    if storage.is_remote(target):
        _move_objects(temporary, target, last)
        return
    target = os.path.realpath(target)
    if os.path.exists(target) and not os.path.isdir(target):
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", target)
    parent = os.path.dirname(target)
    os.makedirs(parent, exist_ok=True)
    if os.path.realpath(os.path.dirname(temporary)) != parent:  # a link may lead to another disk
        moved = f"{target}.published{TEMPORARY_SUFFIX}"
        if os.path.lexists(moved):  # left by a process that was killed while it moved
            storage.remove_folder(moved)
        temporary = shutil.move(temporary, moved)
    _sync_folder(temporary)
    aside = f"{target}.replaced{TEMPORARY_SUFFIX}"
    if os.path.isdir(target):
        if os.path.lexists(aside):  # left by a process that was killed just before it removed it
            storage.remove_folder(aside)
        os.rename(target, aside)
    try:
        os.rename(temporary, target)
    except BaseException:
        if os.path.isdir(aside):
            os.rename(aside, target)
        raise
    storage.sync(parent)
    if os.path.lexists(aside):
        storage.remove_folder(aside)


def refuse_fixed_folder(target: str) -> None:
    """Refuses a folder that `publish_folder` cannot replace, or not without harm.

    Raises:
        UserError: a disk is mounted there, as a container's output often is; or the caller's shell
            is in it and would be left in a folder that is gone; or it is a whole bucket.
    """
    refuse_whole_bucket(target)
    if storage.is_remote(target):
        return
    real = os.path.realpath(target)
    if os.path.ismount(real):
        raise UserError(
            f"{target} is a mount point, which a finished folder cannot replace: name a folder "
            "below it"
        )
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        return
    if f"{here}{os.sep}".startswith(f"{real}{os.sep}"):
        raise UserError(
            f"{target} is the working directory or holds it, and would be replaced by a new folder:"
            " name a folder below it, or call this from elsewhere"
        )


def _sync_folder(path: str) -> None:
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    if len(files) > _MAX_SYNCS:
        os.sync()
        return
    for file in files:
        storage.sync(file)
    for folder, _, _ in os.walk(path):
        storage.sync(folder)


def _move_objects(source: str, target: str, last: str) -> None:
    """Moves every file below `source`; an old `last` is removed first, the new one comes last."""
    if source.partition("://")[0] != target.partition("://")[0]:  # else found after the removal
        raise ValueError(f"{source} cannot be moved to {target}: they are in different stores")
    if last:
        storage.remove_if_there(os.path.join(target, last))
    if storage.is_folder(target):
        # On ram:// a folder `a` exists as soon as `a.claim.json` does.
        with contextlib.suppress(FileNotFoundError):
            storage.remove_folder(target)
    paths = [
        os.path.join(folder, name) for folder, _, names in storage.walk(source) for name in names
    ]
    for path in sorted(paths, key=lambda path: (path == os.path.join(source, last), path)):
        moved = target + path.removeprefix(source)
        storage.make_folder(os.path.dirname(moved))
        storage.rename(path, moved)
    with contextlib.suppress(FileNotFoundError):  # ram:// has folders only as parts of names
        storage.remove_folder(source)
