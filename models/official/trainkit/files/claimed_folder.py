"""Folders that one process at a time writes, whole or not at all."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.publishing import publish_folder, refuse_fixed_folder


@contextmanager
def claimed_folder(directory: str, *, check: Callable[[], None], last: str = "") -> Iterator[str]:
    """Makes a new folder, which gets the name `directory` when the block ends.

    An error leaves an existing folder as it was; otherwise it is replaced. Where `directory` is a
    link, the folder that it points to is replaced. In a bucket, where a folder cannot be renamed at
    once, `last` is written after all other files, and an error between them leaves none.

    Args:
        directory: the final name.
        check: refuses a folder that must not be replaced. Callers call it before their work; here
            it finds one that another process has finished since, also while the block ran.
        last: the file that makes the folder whole.

    Yields:
        The new folder.

    Raises:
        ClaimError: another process writes the folder, or has taken it over.
        UserError: as `refuse_fixed_folder`.
        OSError: it cannot be written.
    """
    refuse_fixed_folder(directory)
    directory = directory.rstrip("/") or "/"
    if not storage.is_remote(directory):
        directory = os.path.realpath(directory)
    parent, name = os.path.split(directory)
    # A dot in front: on ram:// a folder `a` exists as soon as `a.temporary` does.
    temporary = os.path.join(parent, f".{name}{storage.TEMPORARY_SUFFIX}")
    with Claim(os.path.join(parent, f".{name}.claim.json"), output=directory) as claim:
        check()
        _remove(temporary)
        try:
            storage.make_folder(temporary)
            yield temporary
            claim.verify()
            check()
            publish_folder(temporary, directory, last=last)
        except BaseException:
            _remove(temporary)
            raise


def _remove(directory: str) -> None:
    if storage.is_folder(directory):
        storage.remove_folder(directory)
