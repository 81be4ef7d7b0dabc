"""The folder of drawings, checked before the images are predicted, and drawn by one process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet.detection.inspection.objects import InspectionError
from tpudet.detection.inspection.save_images import check_image_folder
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.files.listed_files import listed_files
from tpudet.trainkit.image_folder import list_images


def test_drawings_never_replace_the_images(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.jpg", "b.png"):
        (photos / name).touch()
    (tmp_path / "link").symlink_to(photos)
    images = list_images(str(photos), None)
    check_image_folder(str(tmp_path / "drawn"), images)
    check_image_folder(str(photos), images[1:])  # b.jpg is another file than b.png
    for folder in ("photos", "photos/", "link", "drawn/../photos"):
        with pytest.raises(InspectionError, match="would replace 1 of the images .* name another"):
            check_image_folder(f"{tmp_path}/{folder}", images)


def draw(folder: Path, names: list[str], content: bytes) -> None:
    with listed_files(str(folder), names, argument="--save_images") as write:
        for name in names:
            write(name, content)


def test_images_of_the_same_name_that_are_no_drawings_are_kept(tmp_path: Path) -> None:
    """A `train` and a `val` folder often share names."""
    for folder in ("photos", "foreign"):
        (tmp_path / folder).mkdir()
        for name in ("a.jpg", "b.jpg"):
            (tmp_path / folder / name).write_bytes(b"mine")
    images = list_images(str(tmp_path / "photos"), None)
    foreign = tmp_path / "foreign"
    with pytest.raises(UserError, match="foreign holds 2 files .* not make .* such as a.jpg"):
        check_image_folder(str(foreign), images)
    with pytest.raises(UserError, match="holds 1 files"):
        draw(foreign, ["b.jpg", "c.jpg"], b"drawn")
    draw(foreign, ["c.jpg"], b"drawn")
    assert {path.name: path.read_bytes() for path in foreign.glob("*.jpg")} == {
        "a.jpg": b"mine",
        "b.jpg": b"mine",
        "c.jpg": b"drawn",
    }


DRAWN_AND_KILLED = """
import os, signal, sys
from tpudet.trainkit.files.listed_files import listed_files
with listed_files(sys.argv[1], sys.argv[2:], argument="--save_images") as write:
    write("a.jpg", b"second")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_process_draws_and_no_run_leaves_a_mixture(tmp_path: Path) -> None:
    """The second of two runs is killed after 1 of 3 drawings: none of the first is left."""
    names = ["a.jpg", "b.jpg", "c.jpg"]
    draw(tmp_path, names, b"first")
    # Not by a fork, which JAX warns of where an earlier test has started it.
    killed = subprocess.run([sys.executable, "-c", DRAWN_AND_KILLED, str(tmp_path), *names])
    assert killed.returncode == -signal.SIGKILL
    assert [path.read_bytes() for path in tmp_path.glob("*.jpg")] == [b"second"]
    with listed_files(str(tmp_path), ["a.jpg"], argument="--save_images") as write:
        write("a.jpg", b"third")
        with pytest.raises(ClaimError, match=f"is being written by process {os.getpid()} on"):
            draw(tmp_path, names, b"fourth")
    assert sorted(os.listdir(tmp_path)) == ["a.jpg", "written_images.json"]
    assert (tmp_path / "a.jpg").read_bytes() == b"third"


@pytest.mark.parametrize("text", ['{"a.jpg": 1}', '["../mine.jpg"]', "[1]", "no list"])
def test_a_list_of_another_origin_removes_nothing(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "written_images.json").write_text(text)
    (tmp_path / "mine.jpg").touch()
    with pytest.raises(UserError, match=r"written_images\.json is not the list .* move it away"):
        draw(folder, ["a.jpg"], b"drawn")
    assert (tmp_path / "mine.jpg").exists()
    assert os.listdir(folder) == ["written_images.json"]
