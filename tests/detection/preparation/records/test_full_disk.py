"""No room for a file: said in one message, nothing half-written, and the same command resumes."""

import json
import subprocess
import sys

import tensorflow as tf

from tpudet.detection.commands import make_tfrecords

LIMIT = 100_000  # bytes; the system lets no file grow beyond, as where there is no room
LIMITED = (
    "import resource, runpy, sys; "
    f"resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT})); "
    "runpy.run_module('tpudet', run_name='__main__')"
)


def test_a_full_disk(write_coco, encoded_image, tmp_path) -> None:
    small = encoded_image()
    large = small[:2] + 4 * (b"\xff\xfe\xff\xff" + bytes(65_533)) + small[2:]  # comments
    assert len(small) < LIMIT < len(large) == len(small) + 4 * 65_537
    encoded_images = {f"{number}.jpg": small if number < 6 else large for number in range(8)}
    path, images = write_coco(encoded_images, {name: [(3, 1, 1, 9, 9)] for name in encoded_images})
    output = tmp_path / "part"
    arguments = ["--format", "coco", "--annotations", path, "--images", images, "--output", output]
    arguments += ["--split", "val", "--num_shards", 8, "--workers"]
    command = [str(argument) for argument in arguments]

    failed = subprocess.run(
        [sys.executable, "-c", LIMITED, "make_tfrecords", *command, "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2
    prefix = "tpudet make_tfrecords: "
    (message,) = (line for line in failed.stderr.splitlines() if line.startswith(prefix))
    assert f"{output}/val_part.progress/val_part-0000" in message
    assert "cannot be written" in message
    assert "File too large" in message
    assert "Traceback" not in failed.stderr
    shards = [f"val_part-{index:05d}-of-00008.tfrecord" for index in range(6)]
    # A shard is finished with its report. The failed one stops the other worker's wherever it is:
    # before the file, the index or the report.
    progress = output / "val_part.progress"
    finished = [name for name in shards if (progress / f"{name}.json").exists()]
    assert len(finished) >= 5
    assert [path.name for path in output.iterdir()] == ["val_part.progress"]
    present = {path.name for path in progress.iterdir()}
    assert present >= {*finished, *(f"{name}.offsets" for name in finished), "classes.csv"}
    # No part of a shard under any name.
    endings = ("", ".offsets", ".json")
    assert present <= {"classes.csv", *(name + ending for name in shards for ending in endings)}
    for name in present.intersection(shards):
        assert len(list(tf.data.TFRecordDataset(str(progress / name)))) == 1
    times = {name: (progress / name).stat().st_mtime_ns for name in finished}

    assert make_tfrecords.main([*command, "1"]) == 0
    manifest = json.loads((output / "val_part.manifest.json").read_text())
    assert [entry["bytes"] > LIMIT for entry in manifest["shards"]] == 6 * [False] + 2 * [True]
    assert {name: (output / name).stat().st_mtime_ns for name in finished} == times
