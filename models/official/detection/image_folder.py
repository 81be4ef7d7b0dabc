"""A folder of images: which there are, and their bytes, read ahead by threads."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import tensorflow as tf

from trainkit.images import ImageError, standardize

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")


class ImageFolderError(ValueError):
    """The folder or the list of ids cannot be used; says what to do."""


class ImageFile(NamedTuple):
    """An image to predict."""

    image_id: str  # file name without its extension
    path: str


def list_images(directory: str, wanted_ids: Sequence[str] | None) -> list[ImageFile]:
    """Lists the images that lie in `directory` itself, by rising id.

    Args:
        directory: folders inside it are not entered.
        wanted_ids: image ids to take; None for all.

    Raises:
        ImageFolderError: no image, two files of one id, or an id that has no file.
    """
    if not tf.io.gfile.isdir(directory):
        raise ImageFolderError(f"no directory {directory}: --images DIR is where the images are")
    names = sorted(tf.io.gfile.listdir(directory))
    files: dict[str, list[str]] = {}
    for name in names:
        image_id, extension = os.path.splitext(name)
        if extension.lower() in IMAGE_EXTENSIONS:
            files.setdefault(image_id, []).append(name)
    if not files:
        there = ", ".join(names[:10]) or "nothing"
        raise ImageFolderError(
            f"no image in {directory} ({' '.join(IMAGE_EXTENSIONS)}); there is: {there}"
        )
    ids = sorted(files) if wanted_ids is None else sorted(set(wanted_ids))
    problems = [
        f"{i}: {' and '.join(files[i])} have one id" for i in ids if len(files.get(i, [])) > 1
    ]
    problems += [f"{i}: no such image in {directory}" for i in ids if i not in files]
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ImageFolderError("\n  ".join(["the images do not fit:", *problems[:10]]) + more)
    return [ImageFile(i, os.path.join(directory, files[i][0])) for i in ids]


def read_ids(path: str) -> list[str]:
    """Reads image ids, one a line: a text file, or the first column of a submission CSV.

    Raises:
        ImageFolderError: there is no such file, or no id in it.
    """
    if not tf.io.gfile.exists(path):
        raise ImageFolderError(f"no file {path}: --ids FILE has an image id a line")
    ids = [line.split(",")[0].strip() for line in _read(path).decode("utf-8-sig").splitlines()]
    if ids and ids[0].lower() == "imageid":
        ids = ids[1:]
    ids = [image_id for image_id in ids if image_id]
    if not ids:
        raise ImageFolderError(f"{path} has no image id; it should have one a line")
    return ids


def read_ahead(
    images: Iterable[ImageFile], *, workers: int, ahead: int
) -> Iterator[tuple[ImageFile, bytes | str]]:
    """Yields each image with its bytes, or with the reason why it has none, in order."""
    pending: deque[tuple[ImageFile, Future[bytes | str]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for image in images:
            pending.append((image, pool.submit(_read_image, image.path)))
            if len(pending) > ahead:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()


def _read_image(path: str) -> bytes | str:
    try:
        return standardize(_read(path)).encoded
    except ImageError as error:
        return str(error)
    except tf.errors.OpError as error:
        return f"cannot be opened: {error.message}"


def _read(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()
