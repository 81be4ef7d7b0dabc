"""A folder of PNGs and their page that is there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tpudet.detection.inspection.objects import InspectionError, name_some
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import list_names

PAGE_NAME = "index.html"
_TEMPORARY = "temporary."  # in front: to ram:// a folder `a` is there as soon as `a.temporary` is


def check_output(directory: str, *, force: bool) -> None:
    """Refuses an output folder that should not be replaced.

    Raises:
        InspectionError: it is a file, or is there and `force` is False, or holds something that
            this command does not write.
    """
    directory = _plain(directory)
    if storage.exists(directory) and not storage.is_folder(directory):
        raise InspectionError(f"--output {directory} is a file; name a folder")
    names = list_names(directory)
    foreign = [name for name in names if name != PAGE_NAME and not name.endswith(".png")]
    if foreign or (names and PAGE_NAME not in names):
        raise InspectionError(
            f"--output {directory} holds what this command did not make, and is left alone: "
            f"{name_some(foreign or names)}; name another folder"
        )
    if names and not force:
        raise InspectionError(f"--output {directory} exists; -f replaces it with all in it")


@contextmanager
def whole_folder(directory: str) -> Iterator[str]:
    """Gives a new folder to write in, which gets the name `directory` when the block ends.

    An error leaves what was there; it is replaced otherwise (`check_output` says whether it may).
    In a bucket, where a folder cannot be renamed at once, the page is there once all pictures are.

    Raises:
        OSError: it cannot be written.
    """
    directory = _plain(directory)
    temporary = os.path.join(os.path.dirname(directory), _TEMPORARY + os.path.basename(directory))
    _remove(temporary)
    try:
        storage.make_folder(temporary)
        yield temporary
        _remove(directory)
        _move(temporary, directory)
    except BaseException:
        _remove(temporary)
        raise


def write_bytes(directory: str, name: str, content: bytes) -> None:
    """Writes a file into a folder that is not there yet under its own name."""
    with storage.open_file(os.path.join(directory, name), "wb") as file:
        file.write(content)


def _move(source: str, target: str) -> None:
    """Renames a folder; where folders are but parts of names, its files, the page last."""
    if "://" not in target:
        storage.rename(source, target)
        return
    storage.make_folder(target)
    for name in sorted(list_names(source), key=lambda name: name == PAGE_NAME):
        storage.rename(os.path.join(source, name), os.path.join(target, name))
    _remove(source)


def _plain(directory: str) -> str:
    return directory.rstrip("/") or "/"


def _remove(directory: str) -> None:
    if storage.is_folder(directory):
        storage.remove_folder(directory)
