"""A folder of images may hold names and kinds of files that nobody expects."""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.detection.preparation.sources.image_files import read_in_turn
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.image_folder import list_image_names, list_images, list_inputs, read_ahead


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    done, encoded = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))
    assert done
    (tmp_path / "good.jpg").write_bytes(encoded.tobytes())
    os.mkfifo(tmp_path / "fifo.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "here.jpg").symlink_to(".")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    return tmp_path


def test_what_is_no_file_has_a_reason_and_is_not_waited_for(folder: Path) -> None:
    images = list_images(str(folder), None)
    read = {image.image_id: content for image, content in read_ahead(images, workers=2, ahead=2)}
    assert isinstance(read.pop("good"), bytes)
    assert read == {
        "fifo": "cannot be opened: it is a device or FIFO, not a file",
        "zero": "cannot be opened: it is a device or FIFO, not a file",
        "folder": "cannot be opened: Is a directory",
        "here": "cannot be opened: Is a directory",
        "loop": "cannot be opened: Too many levels of symbolic links",
    }


def test_the_same_while_records_are_written(folder: Path) -> None:
    names = ["fifo.jpg", "good.jpg", "zero.jpg", "here.jpg"]
    kinds = [type(content) for content in read_in_turn([str(folder)], names)]
    assert kinds == [OSError, bytes, OSError, IsADirectoryError]


def test_names_that_are_not_utf8_are_refused_in_words(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"1 file names in .* as UTF-8, .*'caf\\udce9.jpg'"):
        list_image_names(str(tmp_path))


def test_images_of_every_format_that_preparation_reads_are_listed(tmp_path: Path) -> None:
    """Also in capitals; preparation and prediction share this list."""
    formats = [
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "png",
        "webp",
        "bmp",
        "gif",
        "tif",
        "tiff",
        "avif",
        "jp2",
    ]
    names = [f"{number:02}.{name}" for number, name in enumerate(formats)]
    names += [f"{number + 20}.{name.upper()}" for number, name in enumerate(formats)]
    for name in (*names, "notes.txt", "noextension"):
        (tmp_path / name).touch()
    assert list_image_names(str(tmp_path)) == names
    assert [os.path.basename(image.path) for image in list_images(str(tmp_path), None)] == names
    assert list_inputs([str(tmp_path)], None).others == ["noextension", "notes.txt"]
