"""Reading ahead: the same contents in the same order, and each fault in its place."""

import gc
import json
import os
from pathlib import Path

import pytest
import tensorflow as tf

from tpudet.detection.commands import make_tfrecords
from tpudet.detection.preparation.sources.image_files import read_in_turn
from tpudet.trainkit.files import storage


def test_contents_come_in_order_from_the_first_directory_that_has_them(tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        for number in range(0, 40, 1 if directory == second else 3):
            (directory / str(number)).write_bytes(f"{directory.name} {number}".encode())
    files = [str(number) for number in (*range(39, -1, -1), 7, 7)]
    read = list(read_in_turn((str(first), str(second)), files))
    assert read == [f"{'second' if int(n) % 3 else 'first'} {n}".encode() for n in files]


def test_a_fault_takes_the_place_of_the_content(tmp_path) -> None:
    (tmp_path / "good").write_bytes(b"content")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    files = ["good", "gone", "folder", "good/below", "empty", "good"]
    read = list(read_in_turn((str(tmp_path),), files))
    assert [read[0], read[4], read[5]] == [b"content", b"", b"content"]
    assert isinstance(read[1], FileNotFoundError)
    assert isinstance(read[2], OSError)
    assert not isinstance(read[2], FileNotFoundError)
    assert storage.reason(read[2]) == "Is a directory"
    assert isinstance(read[3], FileNotFoundError)


def test_remote_storage_is_read_too(tmp_path) -> None:
    (tmp_path / "b").write_bytes(b"local")
    with tf.io.gfile.GFile("ram://image_files/a", "wb") as file:
        file.write(b"remote")
    read = list(read_in_turn(("ram://image_files", str(tmp_path)), ["b", "a", "c"]))
    assert read[:2] == [b"local", b"remote"]
    assert isinstance(read[2], FileNotFoundError)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files in /proc")
def test_no_file_stays_open_when_the_reading_is_given_up(tmp_path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    contents = read_in_turn((str(tmp_path),), [str(number) for number in range(20)])
    assert next(contents) == b"x"
    assert len(os.listdir("/proc/self/fd")) > before
    del contents
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_missing_files_are_counted_and_ten_are_named(
    write_coco, encoded_image, tmp_path, capsys
) -> None:
    encoded_images = {f"{n:02d}.jpg": None if n % 2 else encoded_image() for n in range(30)}
    path, images = write_coco(encoded_images, {name: [(3, 1, 1, 9, 9)] for name in encoded_images})
    output = tmp_path / "part"
    arguments = ["--format", "coco", "--annotations", path, "--images", images, "--split", "val"]
    arguments += ["--output", output, "--workers", 1, "--num_shards", 3]
    assert make_tfrecords.main([str(argument) for argument in arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.split() == ["15", "missing", "file"])
    named = [line.split()[0] for line in lines[start + 1 : start + 12]]
    assert named == [*(f"{n:02d}.jpg" for n in range(1, 20, 2)), "..."]
    manifest = json.loads((Path(output) / "val_part.manifest.json").read_text())
    assert manifest["left_out_counts"] == {"missing file": 15}
    assert len(manifest["left_out"]) == 15
