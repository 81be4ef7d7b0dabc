"""The preflight of a bucket: what it leaves, and what it says of a refusal."""

from pathlib import Path

import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import preflight
from tpudet.trainkit.files.preflight import check_storage


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    assert check_storage(str(tmp_path)) == "can list (1 names), write, read and remove files"
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_folder_is_made(tmp_path: Path) -> None:
    check_storage(f"{tmp_path}/a/b/")
    assert (tmp_path / "a/b").is_dir()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="/file cannot be made: .*xist"):
        check_storage(f"{tmp_path}/file")


def test_what_a_bucket_refuses_is_explained_with_the_roles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As TensorFlow's file system for gs:// words it; a bucket is not at hand."""
    monkeypatch.setattr(preflight.storage, "make_folder", lambda path: None)
    monkeypatch.setattr(preflight.storage, "list_names", lambda path: [])

    def refuse(path: str, mode: str):
        raise PermissionError("Error executing an HTTP request: HTTP response code 403")

    monkeypatch.setattr(preflight.storage, "open_file", refuse)
    with pytest.raises(UserError) as caught:
        check_storage("gs://bucket/saved")
    text = str(caught.value)
    assert text.startswith("gs://bucket/saved cannot be written to: Error executing")
    assert "roles/storage.objectViewer" in text
    assert "roles/storage.objectUser" in text
    assert "add-iam-policy-binding gs://bucket --member" in text
