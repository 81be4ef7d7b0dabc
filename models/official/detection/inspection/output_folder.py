"""Writes a folder of PNGs and their page, whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tpudet.detection.inspection.objects import InspectionError
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_folder import claimed_folder
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
        raise InspectionError(f"--output {directory} exists; -f replaces it and everything in it")


@contextmanager
def whole_folder(directory: str, *, force: bool) -> Iterator[str]:
    """Makes a new folder, which gets the name `directory` when the block ends.

    As `claimed_folder`; in a bucket the page is written after all images.

    Args:
        directory: the final name.
        force: whether an existing folder is replaced, see `check_output`.

    Raises:
        ClaimError: another process writes the folder.
        InspectionError: as `check_output`, of what another process has written meanwhile.
        OSError: it cannot be written.
    """
    check = partial(check_output, directory, force=force)
    with claimed_folder(directory, last=PAGE_NAME, check=check) as folder:
        yield folder


def write_bytes(directory: str, name: str, content: bytes) -> None:
    """Writes a file into the folder of `whole_folder`."""
    with storage.open_file(os.path.join(directory, name), "wb") as file:
        file.write(content)


def _plain(directory: str) -> str:
    return directory.rstrip("/") or "/"
