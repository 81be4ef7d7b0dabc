"""Uploads: every byte arrives, nothing is lost or replaced unasked, and a stopped one resumes."""

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.detection.commands.upload import main
from tpudet.detection.preparation.records import transfers

SCRIPT = Path(__file__).parents[4] / "scripts/upload_files_to_gcs.sh"
# Sizes around the block that is copied at once, 4 MiB.
SIZES = {
    "classes.csv": 12,
    "train_part_0-00000-of-00002.tfrecord": 9_000_001,
    "train_part_0-00001-of-00002.tfrecord": 1 << 22,
    "empty": 0,
    "more/deep/val.json": 700,
}


def content(path: str) -> bytes:
    with tf.io.gfile.GFile(path, "rb") as file:
        return file.read()


def below(folder: str) -> dict[str, bytes]:
    """Every file below a folder, temporary ones too, by its path from there."""
    paths = [
        os.path.join(parent, name)
        for parent, _, names in tf.io.gfile.walk(folder)
        for name in names
    ]
    return {path.removeprefix(f"{folder}/"): content(path) for path in paths}


@pytest.fixture
def part(tmp_path: Path) -> Path:
    folder = tmp_path / "converted/part_0"
    for number, (name, size) in enumerate(SIZES.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number, 13, 10, 255]) * (size // 4 + 1))
        os.truncate(path, size)
        os.utime(path, (1e9, 1e9))
    return folder


@pytest.fixture(params=["local", "ram"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"ram://{uuid.uuid4()}/to"


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_all_files_arrive_and_a_second_run_copies_what_is_missing(part, destination, capsys):
    expected = {f"part_0/{name}": data for name, data in below(str(part)).items()}
    assert {name: len(data) for name, data in below(str(part)).items()} == SIZES
    total = sum(SIZES.values())

    assert run("--dry_run", part, destination) == 0
    assert f"5 of 5 file(s), {total} bytes would be copied" in capsys.readouterr().out
    assert not tf.io.gfile.exists(destination)

    assert run(part, destination) == 0
    assert f"5 file(s), {total} bytes copied, 0 already existed" in capsys.readouterr().out
    assert below(destination) == expected
    assert run(part, destination) == 0
    assert "0 file(s), 0 bytes copied, 5 already existed" in capsys.readouterr().out

    tf.io.gfile.remove(f"{destination}/part_0/classes.csv")
    assert run(f"{part}/", f"{destination}/") == 0
    assert "1 file(s), 12 bytes copied, 4 already existed" in capsys.readouterr().out
    assert below(destination) == expected


def test_back_from_a_bucket(part, tmp_path):
    bucket, back = f"ram://{uuid.uuid4()}", tmp_path / "back"
    assert run(part, f"{bucket}/to") == 0
    assert run(f"{bucket}/to/part_0", back) == 0
    assert below(str(back / "part_0")) == below(str(part))


def test_another_file_at_the_destination_is_replaced_only_when_told(part, destination, capsys):
    assert run(part, destination) == 0
    changed = part / "classes.csv"
    changed.write_bytes(b"longer than before")
    before = below(destination)
    (part / "new").write_bytes(b"new")
    assert run(part, destination) == 2
    message = capsys.readouterr().err
    assert f"{destination}/part_0/classes.csv already exists" in message
    assert "--overwrite" in message
    assert below(destination) == before  # neither was copied

    assert run("--overwrite", part, destination) == 0
    assert content(f"{destination}/part_0/classes.csv") == b"longer than before"

    # Of the same size, so that only the content tells.
    changed.write_bytes(b"Longer than before")
    os.utime(changed, (1e9, 1e9))
    assert run(part, destination) == 0
    assert content(f"{destination}/part_0/classes.csv") == b"longer than before"
    assert run("--checksum", part, destination) == 2
    assert run("--checksum", "--overwrite", part, destination) == 0
    assert content(f"{destination}/part_0/classes.csv") == b"Longer than before"


def test_a_source_younger_than_its_copy_is_not_taken_for_the_same(part, tmp_path, capsys):
    destination = tmp_path / "bucket"
    assert run(part, destination) == 0
    os.utime(destination / "part_0/classes.csv", (1e9 - 1, 1e9 - 1))
    assert run(part, destination) == 2
    assert "older than the source. Pass --checksum" in capsys.readouterr().err
    assert run("--checksum", part, destination) == 0


def test_sources_are_deleted_only_when_told_and_only_after_all_is_verified(
    part, destination, capsys, monkeypatch
):
    expected = below(str(part))
    real = transfers.whole_file

    def fails_at_one(path, mode):
        if path.endswith("val.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "whole_file", fails_at_one)
        assert run("--delete_source", part, destination) == 2
    message = capsys.readouterr().err
    assert "1 of 5 copies failed" in message
    assert "val.json: No space left on device" in message
    assert below(str(part)) == expected
    copied = below(f"{destination}/part_0")
    assert copied == {name: data for name, data in expected.items() if "val" not in name}

    # A copy of equal size and other content must not cost the source its life.
    with tf.io.gfile.GFile(f"{destination}/part_0/more/deep/val.json", "wb") as file:
        file.write(bytes(700))
    assert run("--delete_source", part, destination) == 2
    assert below(str(part)) == expected
    assert run("--delete_source", "--overwrite", part, destination) == 0
    assert "5 source file(s) deleted" in capsys.readouterr().out
    assert below(str(part)) == {}
    assert below(f"{destination}/part_0") == expected


def test_a_copy_that_does_not_match_is_an_error(part, tmp_path, capsys, monkeypatch):
    class Lossy:
        def __init__(self, file):
            self.file = file

        def write(self, block):
            self.file.write(block[:-1] if len(block) == 700 else block)

    real = transfers.whole_file

    class lossy_file:
        def __init__(self, path, mode):
            self.context = real(path, mode)

        def __enter__(self):
            return Lossy(self.context.__enter__())

        def __exit__(self, *error):
            return self.context.__exit__(*error)

    monkeypatch.setattr(transfers, "whole_file", lossy_file)
    assert run("--delete_source", part, tmp_path / "bucket") == 2
    assert "val.json has 699 bytes, its source 700" in capsys.readouterr().err
    assert (part / "more/deep/val.json").exists()


def test_mistakes_are_listed_together_before_anything_is_copied(part, tmp_path, capsys):
    (tmp_path / "void").mkdir()
    (tmp_path / "begun/train_begun.progress").mkdir(parents=True)
    (tmp_path / "begun/x.tfrecord").write_bytes(b"x")
    (tmp_path / "other/part_0").mkdir(parents=True)
    (tmp_path / "other/part_0/classes.csv").write_bytes(b"x")
    bucket = tmp_path / "bucket"
    names = ("none", "void", "begun", "other/part_0", "converted/part_0")
    assert run(*(tmp_path / name for name in names), bucket) == 2
    assert capsys.readouterr().err.splitlines() == [
        "tpudet upload: Nothing was copied.",
        f"  {tmp_path}/none does not exist.",
        f"  {tmp_path}/void contains no files.",
        f"  {tmp_path}/begun/train_begun.progress is of an unfinished run: "
        "finish it, or remove it.",
        f"  {bucket}/part_0/classes.csv would be written 2 times.",
    ]
    assert not bucket.exists()


def test_a_folder_is_not_copied_onto_or_into_itself(part, tmp_path, capsys, monkeypatch):
    before = below(str(tmp_path))
    (tmp_path / "alias").symlink_to(part.parent)
    monkeypatch.chdir(part)
    for source, destination in (
        (part, part.parent),  # would delete the only copy
        (part, tmp_path / "alias"),
        (".", ".."),
        (part.parent, part),
    ):
        assert run("--delete_source", source, destination) == 2
        assert "the same, or one is inside the other" in capsys.readouterr().err
    (tmp_path / "alias").unlink()
    assert below(str(tmp_path)) == before


def test_the_script(part, tmp_path):
    def script(*arguments: object) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHON": sys.executable}
        command = [SCRIPT, *map(str, arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    without = script()
    assert without.returncode == 2
    assert "SOURCE... DESTINATION" in without.stderr
    done = script(part, part / "classes.csv", tmp_path / "bucket")
    assert done.returncode == 0, done.stderr
    assert "6 file(s)" in done.stdout
    assert below(str(tmp_path / "bucket/part_0")) == below(str(part))
    assert (tmp_path / "bucket/classes.csv").read_bytes() == (part / "classes.csv").read_bytes()
