"""Uploads of prepared sets: at the destination is one version, whole, or readers refuse it."""

import json
import os
import uuid
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.detection.commands.upload import main
from tpudet.detection.preparation.records import transfers
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.record_manifest import check_manifest
from tpudet.trainkit.records import shard_path, write_shard

NUM_SHARDS = 4
NUM_FILES = 2 * NUM_SHARDS + 2  # with the indices of the shards, the manifest and classes.csv
NUM_CHANGED = NUM_SHARDS + 2  # all versions have the same indices


def write_version(
    part: Path, mark: bytes, *, split: str = "train", shards: int = NUM_SHARDS
) -> Path:
    """A set whose files have the sizes of every other version, and are as old."""
    part.mkdir(parents=True, exist_ok=True)
    (part / "classes.csv").write_bytes(mark + b",name\n")
    entries = []
    for index in range(shards):
        path = Path(shard_path(f"{part}/{split}_p", index, shards))
        write_shard(str(path), [[mark * 5], [mark * 9]])
        size = path.stat().st_size
        inputs = f"digest of {mark.decode()}"
        entries.append({"file": path.name, "records": 2, "bytes": size, "inputs": inputs})
    counts = dict.fromkeys(("repaired_counts", "left_out_counts", "options"), {})
    fields = {"split": split, "part": "p", "images": 2 * shards, "boxes": 1, "shards": entries}
    text = json.dumps(fields | counts | {"boxes_per_class": {"name": 1}})
    (part / f"{split}_p.manifest.json").write_text(text)
    for path in part.iterdir():
        os.utime(path, (1e9, 1e9))
    return part


def below(folder: str) -> dict[str, bytes]:
    """Every file below a folder by its path from there."""
    found = {}
    for parent, _, names in tf.io.gfile.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with tf.io.gfile.GFile(path, "rb") as file:
                found[path.removeprefix(f"{folder}/")] = file.read()
    return found


@pytest.fixture(params=["local", "ram"])
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "bucket") if request.param == "local" else f"ram://{uuid.uuid4()}/to"


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    return write_version(tmp_path / "c1/p", b"1"), write_version(tmp_path / "c2/p", b"2")


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_another_version_of_equal_sizes_replaces_every_file(versions, destination, capsys) -> None:
    old, new = versions
    assert {path.name: path.stat().st_size for path in old.iterdir()} == {
        path.name: path.stat().st_size for path in new.iterdir()
    }
    assert run(old, destination) == 0
    assert run(new, destination) == 2
    assert "Nothing was copied" in capsys.readouterr().err
    assert below(f"{destination}/p") == below(str(old))
    assert run("--overwrite", new, destination) == 0
    assert capsys.readouterr().out.startswith(f"{NUM_CHANGED} file(s)")
    assert below(f"{destination}/p") == below(str(new))
    assert run(new, destination) == 0
    assert f"0 file(s), 0 bytes copied, {NUM_FILES} already" in capsys.readouterr().out


def test_shards_of_another_number_are_removed_and_other_files_kept(
    tmp_path, versions, destination, capsys
) -> None:
    old, _ = versions
    write_version(old, b"1", split="val")
    assert run(old, destination) == 0
    with tf.io.gfile.GFile(f"{destination}/p/train_p.notes-00000-of-00004.tfrecord", "wb") as file:
        file.write(b"mine")
    fewer = write_version(tmp_path / "c3/p", b"1", shards=3)
    assert run(fewer, destination) == 2
    assert "train_p-00000-of-00004.tfrecord" in capsys.readouterr().err
    assert run("--overwrite", fewer, destination) == 0
    kept = {name: data for name, data in below(str(old)).items() if name.startswith("val")}
    mine = {"train_p.notes-00000-of-00004.tfrecord": b"mine"}
    assert below(f"{destination}/p") == below(str(fewer)) | kept | mine


def is_taken(part: Path) -> bool:
    """Whether a training would take the set, instead of refusing it as unfinished."""
    try:
        return check_manifest(str(part), "train") is not None
    except UserError as error:
        if "still being written, or its writing was interrupted" in str(error):
            return False
        raise


def test_killed_anywhere_a_set_is_refused_or_whole_and_the_upload_resumes(
    tmp_path, versions, monkeypatch, killed_at_each_change
) -> None:
    old, new = versions
    bucket = tmp_path / "bucket"
    whole = [below(str(one)) for one in versions]
    copied: list[str] = []
    real = transfers.whole_file
    monkeypatch.setattr(
        transfers, "whole_file", lambda path, mode: copied.append(path) or real(path, mode)
    )
    assert run(old, bucket) == 0
    copied.clear()
    num_stops = 0
    for _ in killed_at_each_change(lambda: run("--overwrite", "--threads", 1, new, bucket)):
        num_stops += 1
        if is_taken(bucket / "p"):
            found = below(str(bucket / "p"))
            assert {n: data for n, data in found.items() if ".claim" not in n} in whole
        finished = {path for path in copied if Path(path).exists()}
        copied.clear()
        assert run("--overwrite", new, bucket) == 0
        assert not finished.intersection(copied)
        assert below(str(bucket / "p")) == whole[1]
        assert run("--overwrite", old, bucket) == 0
        copied.clear()
    # Two notes, the removal of what differs, the copies, and the end of the progress.
    assert num_stops >= 2 + NUM_CHANGED + NUM_CHANGED + 1


@pytest.mark.parametrize("of_a_set", ["s", "s/"])
def test_a_set_is_not_copied_into_another(of_a_set: str, tmp_path: Path, capsys) -> None:
    """As `upload converted/*` would without a destination."""
    other, last = write_version(tmp_path / "q", b"a"), write_version(tmp_path / "s", b"b")
    before = below(str(tmp_path))
    assert main([str(other), f"{tmp_path}/{of_a_set}"]) == 2
    assert "is itself a prepared set, and the last argument is" in capsys.readouterr().err
    assert below(str(tmp_path)) == before
    for _ in range(2):  # beside others, and again; the files of a set may be named one by one
        assert main([str(other), str(last), f"{tmp_path}/converted"]) == 0
        assert main([*map(str, sorted(last.iterdir())), f"{tmp_path}/alone"]) == 0


def test_shards_alone_are_not_copied_under_the_manifest_of_another_version(
    versions, destination, capsys
) -> None:
    old, new = versions
    shard = "train_p-00001-of-00004.tfrecord"
    assert run(old, destination) == 0
    assert run("--overwrite", new / shard, f"{destination}/p") == 2
    manifest = f"{destination}/p/train_p.manifest.json"
    assert f"not those that {manifest} describes: name their manifest" in capsys.readouterr().err
    assert below(f"{destination}/p") == below(str(old))
    tf.io.gfile.remove(f"{destination}/p/{shard}")
    assert run(old / shard, f"{destination}/p") == 0
    assert below(f"{destination}/p") == below(str(old))


def test_a_stopped_first_upload_copies_no_whole_file_again(
    versions, tmp_path, monkeypatch, capsys
) -> None:
    real = transfers.whole_file

    def full_at_the_third(path: str, mode):
        if path.endswith("00002-of-00004.tfrecord"):
            raise OSError(28, "No space left on device")
        return real(path, mode)

    part, bucket = versions[0], tmp_path / "bucket"
    with monkeypatch.context() as patch:
        patch.setattr(transfers, "whole_file", full_at_the_third)
        assert run(part, bucket) == 2
    assert f"1 of {NUM_FILES - 1} copies failed" in capsys.readouterr().err
    assert not is_taken(bucket / "p")
    assert run(part, bucket) == 0
    assert "2 file(s)" in capsys.readouterr().out  # that shard, and the manifest
    assert below(str(bucket / "p")) == below(str(part))


def test_a_source_written_anew_meanwhile_is_not_finished(
    versions, tmp_path, monkeypatch, capsys
) -> None:
    part, bucket = versions[0], tmp_path / "bucket"
    real = transfers.whole_file

    def write_anew(path: str, mode):
        if path.endswith("00002-of-00004.tfrecord"):
            write_version(part, b"2")
            (part / "train_p.manifest.json").touch()
        return real(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(transfers, "whole_file", write_anew)
        assert run("--threads", 1, part, bucket) == 2
    assert "was changed while its set was copied" in capsys.readouterr().err
    assert not is_taken(bucket / "p")
    assert run("--overwrite", part, bucket) == 0
    assert below(str(bucket / "p")) == below(str(part))


@pytest.mark.parametrize("claim", ["upload.claim.json", "train_p.claim.json"])
def test_one_process_writes_to_a_destination(
    versions, tmp_path, hold_claim, capsys, claim: str
) -> None:
    (tmp_path / "bucket/p").mkdir(parents=True)
    with hold_claim(tmp_path / "bucket/p" / claim) as process:
        assert run("--dry_run", versions[0], tmp_path / "bucket") == 0
        assert run(versions[0], tmp_path / "bucket") == 2
        assert f"is being written by process {process} on" in capsys.readouterr().err
    assert not list((tmp_path / "bucket/p").iterdir())
    assert run(versions[0], tmp_path / "bucket") == 0
