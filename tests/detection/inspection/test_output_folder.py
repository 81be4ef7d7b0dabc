"""A folder of drawings is replaced whole, by one process at a time, and nothing beside it."""

import contextlib
import os
from pathlib import Path

import pytest

from tpudet.detection.inspection.output_folder import PAGE_NAME, whole_folder, write_bytes
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage


def write(folder: object, content: bytes) -> None:
    with whole_folder(str(folder), force=True) as temporary:
        write_bytes(temporary, "a.png", content)
        write_bytes(temporary, PAGE_NAME, content)


def read(folder: object) -> dict[str, bytes]:
    found = {}
    for name in storage.list_folder(str(folder)):
        with storage.open_file(f"{folder}/{name}", "rb") as file:
            found[name] = file.read()
    return found


@pytest.mark.parametrize("folder", ["local", "ram://drawings/out"])
def test_a_folder_is_replaced_whole(folder: str, tmp_path: Path) -> None:
    folder = folder if "://" in folder else str(tmp_path / "out")
    write(folder, b"old")
    with contextlib.suppress(ZeroDivisionError), whole_folder(folder, force=True) as temporary:
        write_bytes(temporary, "b.png", b"half")
        raise ZeroDivisionError
    assert read(folder) == {"a.png": b"old", PAGE_NAME: b"old"}
    write(f"{folder}/", b"new")
    assert read(folder) == {"a.png": b"new", PAGE_NAME: b"new"}
    assert storage.list_folder(os.path.dirname(folder)) == ["out"]


def test_a_folder_behind_a_link_is_replaced_and_a_user_s_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    (tmp_path / "temporary.out").mkdir()
    (tmp_path / "temporary.out/precious").touch()
    write(tmp_path / "out", b"new")
    assert os.readlink(tmp_path / "out") == "disk"
    assert read(tmp_path / "disk") == {"a.png": b"new", PAGE_NAME: b"new"}
    assert (tmp_path / "temporary.out/precious").exists()
    assert sorted(os.listdir(tmp_path)) == ["disk", "out", "temporary.out"]


def test_two_at_once(tmp_path: Path, hold_claim) -> None:
    with hold_claim(tmp_path / ".out.claim.json") as process:
        with pytest.raises(UserError, match=f"out is being written by process {process} on"):
            write(tmp_path / "out", b"new")
        assert not (tmp_path / "out").exists()
    write(tmp_path / "out", b"new")
    with (
        pytest.raises(UserError, match="out exists; -f replaces it"),  # finished by the other
        whole_folder(str(tmp_path / "out"), force=False),
    ):
        raise AssertionError("it is not opened")
    assert read(tmp_path / "out") == {"a.png": b"new", PAGE_NAME: b"new"}
