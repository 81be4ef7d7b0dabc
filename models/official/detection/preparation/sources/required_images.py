"""Refuses paths that lead outside the folder of images, and folders without the images."""

import os
from collections.abc import Sequence
from itertools import islice

from tpudet.detection.preparation.sources.input_files import composed, list_directory, stem
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.image_folder import is_image_name

_FOLDERS_SEARCHED = 100  # for a file of the name of a missing one


def require_inside(directory: str, files: Sequence[str], argument: str = "--images") -> None:
    """Raises if a path leads outside the folder that it is relative to.

    Args:
        directory: the folder.
        files: the paths.
        argument: that names the folder, for the message.

    Raises:
        UserError: counts and names them.
    """
    home = os.path.abspath(directory)
    suspects = (file for file in files if os.pardir in file or file.startswith(os.sep))
    outside = [
        file
        for file in suspects
        if os.path.normpath(file).startswith("..")
        or (os.path.isabs(file) and os.path.commonpath([home, os.path.normpath(file)]) != home)
    ]
    if outside:
        raise UserError(
            f"{len(outside)} file names of the annotations lead outside {argument} {directory}: "
            f"{listing(outside, 5)}{_alike(directory, outside[0])}. Name the folder that holds "
            "them all."
        )


def require_some_image(directory: str, files: Sequence[str]) -> None:
    """Raises if none of the first hundred images is in the directory.

    Single missing images are left out and reported later; a wrong directory is an error right away.

    Raises:
        UserError: it is not a directory, or has none of these images.
    """
    list_directory(directory, "--images")
    sample = files[:100]
    if not any(storage.exists(os.path.join(directory, file)) for file in sample):
        raise UserError(
            f"--images {directory} has none of the first {len(sample)} images of the "
            f"annotations, such as {sample[0]}{_alike(directory, sample[0])}."
        )


def _alike(directory: str, missing: str) -> str:
    """A clause on the file that may be meant by one that is missing; empty where there is none."""
    if not storage.is_folder(directory):
        return ""
    folder, wanted = os.path.split(composed(missing))
    other = ""
    for place, _, names in islice(storage.walk(directory), _FOLDERS_SEARCHED):
        within = composed(place.removeprefix(directory.rstrip("/")).strip("/"))
        for name in map(composed, names):
            path = os.path.join(within, name)
            if name.lower() == wanted.lower():
                advice = "rename either" if within == folder else "call it so in the annotations"
                return f"; it has {path}: {advice}"
            if is_image_name(name) and stem(name).lower() == stem(wanted).lower():
                other = other or f"; it has {path}, of another extension: rename either"
    return other
