"""A published folder is whole or not there, and the old one stays until then."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tpudet.trainkit.files import storage
from tpudet.trainkit.files.publishing import publish_folder
from tpudet.trainkit.files.storage import read_text, write_text


def make_folder(path: Path, content: str) -> str:
    (path / "assets").mkdir(parents=True)
    (path / "assets/classes.csv").write_text(content)
    (path / "model.pb").write_text(content)
    return str(path)


def contents(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_a_published_folder_replaces_the_old_one(tmp_path: Path) -> None:
    for content in ("old", "new"):
        publish_folder(make_folder(tmp_path / "t", content), f"{tmp_path}/sub/model/")
        expected = {"model.pb": content, "assets/classes.csv": content}
        assert contents(tmp_path / "sub/model") == expected
    assert os.listdir(tmp_path / "sub") == ["model"]
    assert os.listdir(tmp_path) == ["sub"]


def test_behind_a_link_the_folder_it_points_to_is_replaced(tmp_path: Path) -> None:
    make_folder(tmp_path / "disk/model", "old")
    (tmp_path / "final").symlink_to("disk/model")
    publish_folder(make_folder(tmp_path / "t", "new"), str(tmp_path / "final"))
    assert os.readlink(tmp_path / "final") == "disk/model"
    assert contents(tmp_path / "disk") == {
        "model/model.pb": "new",
        "model/assets/classes.csv": "new",
    }


def test_links_inside_an_old_folder_are_not_followed(tmp_path: Path) -> None:
    make_folder(tmp_path / "precious", "precious")
    old = Path(make_folder(tmp_path / "model", "old"))
    (old / "linked").symlink_to(tmp_path / "precious")
    publish_folder(make_folder(tmp_path / "t", "new"), str(tmp_path / "model"))
    assert not (old / "linked").exists()
    assert contents(tmp_path / "precious")["model.pb"] == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    storage.remove_folder(str(tmp_path / "link"))
    assert not os.path.lexists(tmp_path / "link")
    assert contents(tmp_path / "precious")["model.pb"] == "precious"


def test_a_folder_does_not_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("precious")
    with pytest.raises(NotADirectoryError, match="it is a file"):
        publish_folder(make_folder(tmp_path / "t", "new"), str(tmp_path / "model"))
    assert (tmp_path / "model").read_text() == "precious"


def test_a_publication_that_fails_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "model", "old")
    temporary = make_folder(tmp_path / "t", "new")
    real = os.rename

    def rename(source: str, target: str) -> None:
        if source == temporary:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="Input/output"):
        publish_folder(temporary, str(tmp_path / "model"))
    assert contents(tmp_path / "model")["model.pb"] == "old"


@pytest.mark.parametrize(("operation", "number"), [("rename", 1), ("rename", 2), ("rmtree", 1)])
def test_killed_while_publishing_both_are_whole(
    tmp_path: Path, operation: str, number: int
) -> None:
    program = """
import os, shutil, sys
from tpudet.trainkit.files.publishing import publish_folder
operation, left = sys.argv[3], [int(sys.argv[4])]
module = os if operation == "rename" else shutil
real = getattr(module, operation)
def act(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), 9)
    real(*arguments)
setattr(module, operation, act)
publish_folder(sys.argv[1], sys.argv[2])
"""
    make_folder(tmp_path / "model", "old")
    arguments = [
        make_folder(tmp_path / "t", "new"),
        str(tmp_path / "model"),
        operation,
        str(number),
    ]
    ended = subprocess.run([sys.executable, "-c", program, *arguments], check=False)
    assert ended.returncode == -signal.SIGKILL
    whole = [folder for folder in tmp_path.iterdir() if len(contents(folder)) == 2]
    assert len(whole) == 2
    publish_folder(make_folder(tmp_path / "again", "newer"), str(tmp_path / "model"))
    assert contents(tmp_path / "model")["model.pb"] == "newer"
    assert {found.name for found in tmp_path.iterdir()} <= {"model", "t"}


def test_a_folder_is_on_the_disk_before_the_old_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after the old folder's removal would otherwise leave neither."""
    done: list[str] = []

    def note(operation: str, real: Callable[..., None]) -> Callable[..., None]:
        def act(path: str, *target: str) -> None:
            done.append(f"{operation} {os.path.relpath(path, tmp_path)}")
            real(path, *target)

        return act

    make_folder(tmp_path / "model", "old")
    temporary = make_folder(tmp_path / "t", "new")
    monkeypatch.setattr(storage, "sync", note("sync", storage.sync))
    monkeypatch.setattr(storage, "remove_folder", note("remove", storage.remove_folder))
    monkeypatch.setattr(os, "rename", note("rename", os.rename))
    publish_folder(temporary, str(tmp_path / "model"))
    files = ["t/assets/classes.csv", "t/model.pb", "t", "t/assets"]
    assert sorted(done[:4]) == sorted(f"sync {path}" for path in files)
    assert done[4:] == [
        "rename model",
        "rename t",
        "sync .",
        "remove model.replaced.temporary",
    ]


def test_what_a_killed_move_to_another_disk_left_is_removed(tmp_path: Path) -> None:
    left = Path(make_folder(tmp_path / "disk/model.published.temporary", "half"))
    (tmp_path / "final").symlink_to("disk/model")
    publish_folder(make_folder(tmp_path / "t", "new"), str(tmp_path / "final"))
    assert contents(tmp_path / "disk/model")["model.pb"] == "new"
    assert not left.exists()


def test_publishing_in_a_bucket_moves_the_marking_file_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: list[str] = []
    real = storage.rename

    def rename(source: str, target: str) -> None:
        if target.startswith("ram://bucket/model/") and source.startswith("ram://bucket/t/"):
            moved.append(target)
        real(source, target)

    monkeypatch.setattr(storage, "rename", rename)
    for content in ("old", "new"):
        storage.make_folder("ram://bucket/t/variables")
        for name in ("a.txt", "model.pb", "variables/z"):
            write_text(f"ram://bucket/t/{name}", content)
        if content == "new":
            write_text("ram://bucket/model/gone", "old")
        publish_folder("ram://bucket/t", "ram://bucket/model", last="model.pb")
    root = "ram://bucket/model/"
    assert moved[3:] == [f"{root}a.txt", f"{root}variables/z", f"{root}model.pb"]
    assert read_text(f"{root}variables/z") == "new"
    assert read_text(f"{root}gone") is None
    assert storage.list_folder("ram://bucket") == ["model"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_publication_in_a_bucket_that_breaks_off_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Of three moves one fails: without the marking file no reader finds a model there."""
    bucket = f"ram://broken{number}"

    def publish(content: str) -> None:
        for name in ("a.txt", "model.pb", "variables/z"):
            storage.make_folder(os.path.dirname(f"{bucket}/t/{name}"))
            write_text(f"{bucket}/t/{name}", content)
        publish_folder(f"{bucket}/t", f"{bucket}/model", last="model.pb")

    publish("old")
    real, left = storage.rename, [number]

    def rename(source: str, target: str) -> None:
        left[0] -= target.startswith(f"{bucket}/model/")
        if not left[0]:
            raise OSError("503: backend error")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "rename", rename)
        with pytest.raises(OSError, match="503"):
            publish("new")
    assert read_text(f"{bucket}/model/model.pb") is None
    publish("newer")
    for name in ("a.txt", "model.pb", "variables/z"):
        assert read_text(f"{bucket}/model/{name}") == "newer"


def test_a_folder_of_another_store_is_refused_before_anything_is_removed(tmp_path: Path) -> None:
    storage.make_folder("ram://stores/model")
    write_text("ram://stores/model/model.pb", "old")
    with pytest.raises(ValueError, match="cannot be moved to .*: they are in different stores"):
        publish_folder(make_folder(tmp_path / "t", "new"), "ram://stores/model", last="model.pb")
    assert read_text("ram://stores/model/model.pb") == "old"
