"""Reading what a user points at, with one clear message where it is not there."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import list_names

IMAGE_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif"),
    *(".tif", ".tiff", ".avif", ".jp2"),
)
_MISSING_SHOWN = 10


@contextmanager
def open_input(path: str, what: str) -> Iterator[tf.io.gfile.GFile]:
    """Opens a file that the user named as `what`, to read bytes.

    Raises:
        PreparationError: it is missing, a directory, or may not be read; also where that shows
            within the block only.
    """
    try:
        if storage.is_folder(path):
            raise PreparationError(f"{what} {path} is a directory; a file is wanted.")
        with storage.open_file(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise PreparationError(f"{what} {path} does not exist.") from None
    except OSError as error:
        raise PreparationError(f"{what} {path} cannot be read: {storage.reason(error)}") from error


def read_bytes(path: str, what: str) -> bytes:
    """The content of a file, with the errors of `open_input`."""
    with open_input(path, what) as file:
        return file.read()


def read_text(path: str, what: str) -> str:
    """As `read_bytes`, decoded; a byte order mark is dropped."""
    try:
        return read_bytes(path, what).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PreparationError(f"{what} {path} is not UTF-8 text: {error}.") from error


def list_directory(path: str, what: str) -> list[str]:
    """The sorted names in a directory.

    Raises:
        PreparationError: it is not a directory.
    """
    if not storage.is_folder(path):
        found = "is not a directory" if storage.exists(path) else "does not exist"
        raise PreparationError(f"{what} {path} {found}.")
    return storage.list_folder(path)


def list_images(directory: str) -> list[str]:
    """The sorted names of the image files in a directory, by their extensions."""
    names = list_directory(directory, "--images")
    return [name for name in names if name.lower().endswith(IMAGE_EXTENSIONS)]


def read_image_list(path: str, what: str = "--image_list") -> list[str]:
    """The names in an image list: one a line, with or without extension.

    The `-1`, `0` or `1` that the per-class lists of Pascal VOC add is ignored.

    Raises:
        PreparationError: the file is missing or names nothing.
    """
    names = []
    for line in read_text(path, what).splitlines():
        name, _, flag = line.strip().rpartition(" ")
        names.append(name.strip() if flag in ("-1", "0", "1") and name else line.strip())
    names = [name for name in names if name]
    if not names:
        raise PreparationError(f"{what} {path} names no image.")
    return names


def read_classes(path: str, what: str = "--classes") -> tuple[ClassEntry, ...]:
    """The classes of a class list: `id,name` a line, without a header.

    Raises:
        PreparationError: it is missing or not such a list.
    """
    text = read_text(path, what)
    try:
        return read_class_list(text)
    except ValueError as error:
        raise PreparationError(f"{what} {path}: {error}") from error


def stem(name: str) -> str:
    """A file's name without its directory and extension."""
    base = os.path.basename(name)
    root, extension = os.path.splitext(base)
    return root if extension.lower() in (*IMAGE_EXTENSIONS, ".xml") else base


def require_some_image(directory: str, files: Sequence[str]) -> None:
    """Refuses an image directory that holds none of the first hundred images.

    Single missing images are left out and reported later; a wrong directory is an error at once.

    Raises:
        PreparationError: not a directory, or none of them is there.
    """
    list_directory(directory, "--images")
    sample = files[:100]
    if not any(storage.exists(os.path.join(directory, file)) for file in sample):
        raise PreparationError(
            f"--images {directory} holds none of the {len(sample)} first images of the "
            f"annotations, such as {sample[0]}."
        )


def missing_files(directories: Sequence[str], files: Sequence[str]) -> list[str]:
    """The files, relative to the directories, that are in none of them, in their order.

    Every folder is listed once, which takes seconds for a million files; asking for each takes
    minutes, and hours in a bucket.
    """
    folders = sorted({os.path.dirname(file) for file in files})
    present: set[str] = set()
    for directory in directories:
        for folder in folders:
            names = list_names(os.path.join(directory, folder))
            present.update(os.path.join(folder, name) for name in names)
    return [file for file in files if file not in present]


def require_images(directories: Sequence[str], files: Sequence[str], advice: str) -> None:
    """Refuses images whose files are missing.

    Args:
        directories: where they are looked for.
        files: relative to the directories.
        advice: a sentence on what to do.

    Raises:
        PreparationError: says how many are missing and names the first ten.
    """
    missing = missing_files(directories, files)
    if missing:
        shown = "\n  ".join(missing[:_MISSING_SHOWN] + ["..."] * (len(missing) > _MISSING_SHOWN))
        raise PreparationError(
            f"{len(missing)} of {len(files)} image files are not in {' or '.join(directories)}:\n"
            f"  {shown}\n{advice}"
        )
