"""Writes a folder of PNGs and their page, whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tpudet.detection.inspection.objects import InspectionError
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim
from tpudet.trainkit.files.publishing import publish_folder
from tpudet.trainkit.files.storage import list_names

PAGE_NAME = "index.html"


def check_output(directory: str, *, force: bool) -> None:
    """Refuses an output folder that must not be replaced.

    Raises:
        InspectionError: it is a file, or exists and `force` is False, or has files that this
            command does not write.
    """
    directory = _plain(directory)
    if storage.exists(directory) and not storage.is_folder(directory):
        raise InspectionError(f"--output {directory} is a file; name a folder")
    names = list_names(directory)
    foreign = [name for name in names if name != PAGE_NAME and not name.endswith(".png")]
    if foreign or (names and PAGE_NAME not in names):
        raise InspectionError(
            f"--output {directory} has files that this command did not write, and is not replaced: "
            f"{listing(foreign or names)}; name another folder"
        )
    if names and not force:
        raise InspectionError(f"--output {directory} exists; -f replaces it with all in it")


@contextmanager
def whole_folder(directory: str) -> Iterator[str]:
    """Makes a new folder, which gets the name `directory` when the block ends.

    An error leaves an existing folder as it was; otherwise it is replaced (see `check_output`), by
    one process at a time. Where `directory` is a link, the folder that it points to is replaced. In
    a bucket, where a folder cannot be renamed at once, the page is written after all images.

    Raises:
        ClaimError: another process writes the folder.
        OSError: it cannot be written.
    """
    directory = _plain(directory)
    if not storage.is_remote(directory):
        directory = os.path.realpath(directory)
    parent, name = os.path.split(directory)
    # A dot in front: on ram:// a folder `a` exists as soon as `a.temporary` does.
    temporary = os.path.join(parent, f".{name}{storage.TEMPORARY_SUFFIX}")
    with Claim(os.path.join(parent, f".{name}.claim.json"), output=directory) as claim:
        _remove(temporary)
        try:
            storage.make_folder(temporary)
            yield temporary
            claim.verify()
            publish_folder(temporary, directory, last=PAGE_NAME)
        except BaseException:
            _remove(temporary)
            raise


def write_bytes(directory: str, name: str, content: bytes) -> None:
    """Writes a file into the folder of `whole_folder`."""
    with storage.open_file(os.path.join(directory, name), "wb") as file:
        file.write(content)


def _plain(directory: str) -> str:
    return directory.rstrip("/") or "/"


def _remove(directory: str) -> None:
    if storage.is_folder(directory):
        storage.remove_folder(directory)
