"""claimed_file, claimed_folder: whole or not at all, and never over what another has finished."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.claimed_folder import claimed_folder
from tpudet.trainkit.files.claims import ClaimError


def refuse(path: Path) -> Callable[[], None]:
    def check() -> None:
        if path.exists():
            raise UserError(f"{path} exists")

    return check


def claimed(kind: str, path: Path, *, force: bool) -> AbstractContextManager[Any]:
    if kind == "file":
        return claimed_file(str(path), "w", force=force)
    return claimed_folder(str(path), check=(lambda: None) if force else refuse(path))


def write(kind: str, opened: Any, text: str) -> None:
    if kind == "file":
        opened.write(text)
    else:
        Path(opened, "a.txt").write_text(text)


def read(kind: str, path: Path) -> str:
    return (path if kind == "file" else path / "a.txt").read_text()


def claim_of(kind: str, path: Path) -> Path:
    return path.with_name(f"{'' if kind == 'file' else '.'}{path.name}.claim.json")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_another_process_has_finished_meanwhile_is_not_replaced(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    with claimed(kind, path, force=False) as opened:
        write(kind, opened, "first")
    with pytest.raises(UserError, match="out exists"), claimed(kind, path, force=False):
        raise AssertionError("it is not opened")
    assert read(kind, path) == "first"
    with claimed(kind, path, force=True) as opened:
        write(kind, opened, "second")
    assert read(kind, path) == "second"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("fault", ["error", "lost claim"])
def test_nothing_is_published_after_an_error_or_without_the_claim(
    kind: str, fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "out"

    def attempt() -> None:
        with claimed(kind, path, force=False) as opened:
            write(kind, opened, "half")
            if fault == "error":
                raise ZeroDivisionError
            claim_of(kind, path).unlink()

    with pytest.raises(ZeroDivisionError if fault == "error" else ClaimError):
        attempt()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_second_process_is_told_who_writes(
    kind: str, tmp_path: Path, hold_claim: Callable
) -> None:
    path = tmp_path / "out"
    with (
        hold_claim(claim_of(kind, path)) as process,
        pytest.raises(ClaimError, match=f"out is being written by process {process} on"),
        claimed(kind, path, force=True),
    ):
        raise AssertionError("two processes at once")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_and_its_target_are_one_output(kind: str, tmp_path: Path) -> None:
    path, link = tmp_path / "out", tmp_path / "link"
    link.symlink_to(path)
    with claimed(kind, link, force=True) as opened:
        write(kind, opened, "through the link")
        with pytest.raises(ClaimError, match=f"is being written by process {os.getpid()} on"):
            claimed(kind, path, force=True).__enter__()
    assert read(kind, path) == "through the link"
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]


@pytest.mark.parametrize("name", [".", "", "../work", "..", "link"])
def test_the_working_directory_is_not_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's shell would be left in a folder that is gone."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    path = Path(name) if name else tmp_path / "work"
    with pytest.raises(UserError, match="is the working directory or holds it"):
        claimed("folder", path, force=True).__enter__()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "work"]
    with claimed("folder", Path("../workshop"), force=True) as opened:  # the same letters
        write("folder", opened, "new")
    with claimed("folder", Path("below"), force=True) as opened:
        write("folder", opened, "new")


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="needs a mount point")
def test_a_mount_point_is_refused_before_the_work() -> None:
    """No process may write there, so that the attempt would end otherwise."""
    with pytest.raises(UserError, match="^/proc/? is a mount point, .* name a folder below it"):
        claimed_folder("/proc/", check=lambda: None).__enter__()


def test_a_folder_with_the_name_of_a_temporary_one_is_kept(tmp_path: Path) -> None:
    """A user's own `out.temporary` beside `out`."""
    (tmp_path / "out.temporary").mkdir()
    (tmp_path / "out.temporary/precious").touch()
    with claimed("folder", tmp_path / "out/", force=True) as opened:
        write("folder", opened, "new")
    assert read("folder", tmp_path / "out") == "new"
    assert (tmp_path / "out.temporary/precious").exists()


@pytest.mark.parametrize("path", ["ram://whole", "ram://whole/", "ram://", "gs:///"])
def test_a_whole_bucket_is_not_replaced(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is `ram:`, a folder of the working directory, and every object in it would go."""
    monkeypatch.chdir(tmp_path)
    storage.make_folder("ram://whole/converted")
    storage.write_text("ram://whole/converted/a.tfrecord", "precious")
    for output in (
        claimed_folder(path, check=lambda: None),
        claimed_file(path, "w", force=True),
    ):
        with pytest.raises(UserError, match=f"^{path} is a whole bucket.*: give it a name in"):
            output.__enter__()
    assert storage.read_text("ram://whole/converted/a.tfrecord") == "precious"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("root", ["", "ram://appears"])
def test_what_appears_in_the_place_while_a_folder_is_written_is_kept(
    root: str, tmp_path: Path
) -> None:
    """A run that begins there meanwhile knows nothing of the claim."""
    path = f"{root or tmp_path}/out"

    def check() -> None:
        if storage.list_names(path):
            raise UserError(f"{path} exists")

    def write_both() -> None:
        with claimed_folder(path, check=check) as folder:
            storage.write_text(f"{folder}/a.txt", "new")
            storage.make_folder(path)
            storage.write_text(f"{path}/metrics.jsonl", "precious")

    with pytest.raises(UserError, match="out exists"):
        write_both()
    assert storage.read_text(f"{path}/metrics.jsonl") == "precious"
