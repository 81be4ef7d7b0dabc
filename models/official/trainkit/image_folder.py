"""Images to predict: lists them, takes a machine's part of them, reads their bytes ahead.

They are in folders, single files, on web servers, or frames of videos.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from tpudet.trainkit.errors import UserError, require_utf8
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input_text
from tpudet.trainkit.files.storage import open_bytes
from tpudet.trainkit.files.web import fetch, is_url, url_file_name
from tpudet.trainkit.images.headers import Container
from tpudet.trainkit.images.standardize import ImageError, standardize
from tpudet.trainkit.images.video import FrameReader, frame_paths, is_frame, is_video_name

# The extensions of image files, lower case, and the formats that they stand for.
IMAGE_FORMATS: dict[str, Container] = {
    **dict.fromkeys((".jpg", ".jpeg", ".jpe", ".jfif"), "JPEG"),
    **{".png": "PNG", ".webp": "WebP", ".bmp": "BMP", ".gif": "GIF"},
    **{".tif": "TIFF", ".tiff": "TIFF", ".avif": "AVIF", ".jp2": "JPEG 2000"},
    **dict.fromkeys((".ppm", ".pgm", ".pnm"), "unknown"),  # decoded, and not told by their headers
}


class ImageFolderError(UserError):
    """The folder or the list of ids cannot be used."""


class ImageFile(NamedTuple):
    """An image to predict."""

    image_id: str  # file name without its extension
    path: str  # or URL, or a frame of a video (`trainkit.images.video`)

    @property
    def name(self) -> str:
        """File name with its extension."""
        return url_file_name(self.path) if is_url(self.path) else os.path.basename(self.path)


class ListedImages(NamedTuple):
    """Images, and what a folder holds besides."""

    images: list[ImageFile]  # sorted by id
    others: list[str]  # files without an extension of images, and folders


def is_image_name(name: str) -> bool:
    """Whether a file has the extension of an image and is one by its name."""
    return os.path.splitext(name)[1].lower() in IMAGE_FORMATS and not is_hidden_copy(name)


def is_hidden_copy(name: str) -> bool:
    """Whether a file is what macOS writes beside each file on foreign disks, `._` and its name."""
    return os.path.basename(name).startswith("._")


def list_image_names(directory: str) -> list[str]:
    """Lists the names of the image files in a directory, sorted; subfolders are not searched.

    Raises:
        UserError: there is no such directory, or names in it are not UTF-8.
    """
    if not storage.is_folder(directory):
        raise ImageFolderError(f"no directory {directory}: --images DIR is where the images are")
    names = storage.list_folder(directory)
    found = [name for name in names if is_image_name(name)]
    require_utf8(found, f"file names in {directory}")
    return found


def list_images(directory: str, wanted_ids: Sequence[str] | None) -> list[ImageFile]:
    """Lists the images in a directory, sorted by id; subfolders are not searched.

    Args:
        directory: the folder.
        wanted_ids: image ids to take; None for all.

    Raises:
        ImageFolderError: no image, two files of one id, or an id that has no file.
    """
    return _chosen(_folder_images(directory), wanted_ids, directory)


def _folder_images(directory: str) -> list[str]:
    """Returns the paths of the images in a folder, at least one."""
    names = list_image_names(directory)
    if not names:
        there = ", ".join(storage.list_folder(directory)[:10]) or "nothing"
        raise ImageFolderError(
            f"no image in {directory} ({' '.join(IMAGE_FORMATS)}); there is: {there}"
        )
    return [os.path.join(directory, name) for name in names]


def _chosen(paths: Sequence[str], wanted_ids: Sequence[str] | None, where: str) -> list[ImageFile]:
    """Returns the images that are wanted, sorted by id."""
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(os.path.splitext(ImageFile("", path).name)[0], []).append(path)
    ids = sorted(files) if wanted_ids is None else sorted(set(wanted_ids))
    problems = [
        f"{i}: {' and '.join(_shortest_names(files[i]))} have one id"
        for i in ids
        if len(files.get(i, [])) > 1
    ]
    problems += [
        f"{i}: no such image in {where}"
        + ("; ids have no extension" if os.path.splitext(i)[0] in files else "")
        for i in ids
        if i not in files
    ]
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise ImageFolderError("\n  ".join(["the images do not fit:", *problems[:10]]) + more)
    return [ImageFile(i, files[i][0]) for i in ids]


def _shortest_names(paths: Sequence[str]) -> list[str]:
    """Names without folders, unless two are equal."""
    names = [path if is_url(path) else os.path.basename(path) for path in paths]
    return names if len(set(names)) == len(names) else list(paths)


def list_inputs(
    paths: Sequence[str], wanted_ids: Sequence[str] | None, *, every: int = 1
) -> ListedImages:
    """Lists images of any origin, sorted by id.

    Args:
        paths: folders, image files (whatever their extension), URLs of image files, videos.
        wanted_ids: image ids to take; None for all.
        every: take every Nth frame of videos.

    Raises:
        ImageFolderError: a path is not usable, there is no image, two have one id, or an id has
            none.
    """
    found: list[str] = []
    others: list[str] = []
    for path in paths:
        if is_url(path):
            if not url_file_name(path):
                raise ImageFolderError(f"{path} does not end with the name of a file")
            found.append(path)
        elif storage.is_folder(path):
            found += _folder_images(path)
            others += list_others(path)
        elif not storage.is_file(path):
            raise ImageFolderError(f"no directory or file {path}: --images names what to predict")
        elif is_video_name(path):
            found += _frames(path, every)
        else:
            found.append(path)
    return ListedImages(_chosen(found, wanted_ids, ", ".join(paths)), others)


def list_others(folder: str) -> list[str]:
    """Lists what a folder holds but images by their names, sorted; hidden files are left out."""
    return [
        f"{name}/" if storage.is_folder(os.path.join(folder, name)) else name
        for name in storage.list_folder(folder)
        if not (name.startswith(".") or is_image_name(name))
    ]


def _frames(path: str, every: int) -> list[str]:
    if storage.is_remote(path):
        raise ImageFolderError(f"{path}: videos are read from a disk; copy it to this machine")
    try:
        return frame_paths(path, every=every)
    except ImageError as error:
        raise ImageFolderError(f"{path}: {error}") from error


def read_ids(path: str) -> list[str]:
    """Reads image ids: one per line of a text file, or the first column of a submission CSV.

    Raises:
        UserError: there is no such file, or no id in it.
    """
    ids = [
        line.split(",")[0].strip().strip('"')
        for line in read_input_text(path, "--ids").splitlines()
    ]
    if ids and ids[0].lower() == "imageid":
        ids = ids[1:]
    ids = [image_id for image_id in ids if image_id]
    if not ids:
        raise ImageFolderError(f"--ids {path} has no image id; one per line is expected")
    return ids


class Shard(NamedTuple):
    """One of `of` nearly equal parts of a list of images, for a machine of its own."""

    number: int  # 1 to `of`
    of: int

    @property
    def suffix(self) -> str:
        """The end of the name of a file of this shard, before the extension."""
        return f"_part_{self.number}_of_{self.of}"


def parse_shard(text: str) -> Shard:
    """Reads `I/N`.

    Raises:
        UserError: it is not of that form, or I is not in 1..N.
    """
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise UserError(f"--shard {text!r}: I/N takes part I of N, 1/4 to 4/4 for four")
    return Shard(int(number), int(of))


def take_shard(images: Sequence[ImageFile], shard: Shard) -> Sequence[ImageFile]:
    """Returns the images of a shard, a slice of the list.

    Raises:
        ImageFolderError: there are fewer images than shards.
    """
    n = len(images)
    if n < shard.of:
        raise ImageFolderError(
            f"{n} images cannot be cut into {shard.of} shards: use at most {n} shards"
        )
    return images[n * (shard.number - 1) // shard.of : n * shard.number // shard.of]


def shard_output_path(path: str, shard: Shard | None) -> str:
    """Returns the path of a shard's predictions: `p.parquet` becomes `p_part_2_of_4.parquet`.

    A name that ends like this already, and any name without a shard, is returned as it is.
    """
    stem, extension = os.path.splitext(path)
    if shard is None or stem.endswith(shard.suffix):
        return path
    return f"{stem}{shard.suffix}{extension}"


def read_ahead(
    images: Iterable[ImageFile], *, workers: int, ahead: int
) -> Iterator[tuple[ImageFile, bytes | str]]:
    """Yields each image with its bytes, or with the reason why it has none, in order."""
    pending: deque[tuple[ImageFile, Future[bytes | str]]] = deque()
    frames = FrameReader()
    with ThreadPoolExecutor(workers, "read") as pool:
        try:
            for image in images:
                if is_frame(image.path):  # in their order, as a video is decoded
                    future = Future()
                    future.set_result(_read_frame(frames, image.path))
                else:
                    future = pool.submit(_read_image, image.path)
                pending.append((image, future))
                if len(pending) > ahead:
                    first, future = pending.popleft()
                    yield first, future.result()
            while pending:
                first, future = pending.popleft()
                yield first, future.result()
        finally:
            for _, future in pending:
                future.cancel()


def _read_image(path: str) -> bytes | str:
    try:
        return standardize(_read(path)).encoded
    except ImageError as error:
        return str(error)
    except OSError as error:
        return f"cannot be opened: {storage.reason(error)}"


def _read_frame(frames: FrameReader, path: str) -> bytes | str:
    try:
        return frames.read(path)
    except ImageError as error:
        return str(error)


def _read(path: str) -> bytes:
    if is_url(path):
        return fetch(path)
    with open_bytes(path) as file:
        return file.read()
