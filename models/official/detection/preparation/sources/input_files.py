"""Folders, image files and image lists that the user named; errors say what is missing."""

import os
from collections.abc import Sequence

from tpudet.trainkit.errors import UserError, require_utf8
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.storage import list_names
from tpudet.trainkit.image_folder import IMAGE_FORMATS

_MISSING_SHOWN = 10


def list_directory(path: str, name: str) -> list[str]:
    """Lists the names in a directory, sorted.

    Args:
        path: the directory, local or in a bucket.
        name: the argument that named it, for messages.

    Raises:
        UserError: it is not a directory, or names in it are not UTF-8.
    """
    if not storage.is_folder(path):
        found = "is not a directory" if storage.exists(path) else "does not exist"
        raise UserError(f"{name} {path} {found}.")
    names = storage.list_folder(path)
    require_utf8(names, f"file names in {path}")
    return names


def read_image_list(path: str, name: str = "--image_list") -> list[str]:
    """Reads the names of an image list, one per line, with or without extension.

    The `-1`, `0` or `1` in the per-class lists of Pascal VOC is ignored.

    Raises:
        UserError: the file is missing or names nothing.
    """
    names = []
    for line in read_input_text(path, name).splitlines():
        image, _, flag = line.strip().rpartition(" ")
        names.append(image.strip() if flag in ("-1", "0", "1") and image else line.strip())
    names = [image for image in names if image]
    if not names:
        raise UserError(f"{name} {path} names no image.")
    return names


def stem(name: str) -> str:
    """Returns a file's name without its directory and its image or XML extension."""
    base = os.path.basename(name)
    root, extension = os.path.splitext(base)
    return root if extension.lower() in (*IMAGE_FORMATS, ".xml") else base


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
            f"annotations, such as {sample[0]}."
        )


def missing_files(directories: Sequence[str], files: Sequence[str]) -> list[str]:
    """Returns the files, relative to the directories, that are in none of them; order is kept.

    Lists every folder once, which takes seconds for a million files. One request per file would
    take minutes, and hours in a bucket.
    """
    folders = sorted({os.path.dirname(file) for file in files})
    present: set[str] = set()
    for directory in directories:
        for folder in folders:
            names = list_names(os.path.join(directory, folder))
            present.update(os.path.join(folder, name) for name in names)
    return [file for file in files if file not in present]


def require_images(directories: Sequence[str], files: Sequence[str], advice: str) -> None:
    """Raises if image files are missing.

    Args:
        directories: folders to search.
        files: paths relative to the directories.
        advice: a sentence on what to do.

    Raises:
        UserError: gives the number of missing files and names the first ten.
    """
    missing = missing_files(directories, files)
    if missing:
        shown = "\n  ".join(missing[:_MISSING_SHOWN] + ["..."] * (len(missing) > _MISSING_SHOWN))
        raise UserError(
            f"{len(missing)} of {len(files)} image files are not in {' or '.join(directories)}:\n"
            f"  {shown}\n{advice}"
        )
