"""Predictions made on a Ray cluster that loses a node are, byte for byte, those of one process."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

NUM_PARTS = 32
# A part is 500 images for users; here it is one, so that few images make many parts.
PROGRAM = """
import json, sys
from tpudet.cli import leave_out_imports

leave_out_imports("predict", [])  # as the command does
from tpudet.detection.inference.parts import PredictionTask
from tpudet.detection.inference.run import run_tasks
from tpudet.detection.inference.saved_detector import read_saved_detector
from tpudet.trainkit.image_folder import list_images

model, images, *targets = sys.argv[1:]
def task(target):
    images_list = list_images(images, None)
    return PredictionTask(read_saved_detector(model), images_list, target, images_per_part=1)

options = dict(batch_size=1, workers=1, on_finished=lambda *result: print(json.dumps(result[1:])))
alone, *together = [task(target) for target in targets]
timing = run_tasks(together, cluster="auto", **options)
print(timing.images)
run_tasks([alone], **options)
"""


@pytest.mark.slow  # TensorFlow on two nodes; records/test_cluster.py loses a node by default
def test_a_node_is_lost_amid(two_nodes, wait_for, saved_model: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    pixels = np.random.default_rng(1).integers(0, 255, (1200, 1600, 3), np.uint8)
    for number in range(NUM_PARTS - 1):  # slow enough to lose the node amid a part
        cv2.imwrite(str(images / f"{number:02d}.jpg"), np.roll(pixels, 50 * number, axis=1))
    (images / "empty.jpg").touch()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    targets = ["alone.parquet", "first/p.parquet", "second/p.parquet"]  # two tasks of a list

    def finished() -> int:
        return len(list(tmp_path.glob("*/p.parquet.parts/part-?????.parquet")))

    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, saved_model, images, *targets],
        cwd=tmp_path,
        env=two_nodes.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_for(lambda: finished() >= 1, process)
        two_nodes.remove_node()
        before = finished()
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert before < 2 * NUM_PARTS
    assert "The cluster lost a node, 2 left" in errors  # the head is one of them
    assert "64/64" in errors
    *results, last = [json.loads(line) for line in printed.splitlines()]
    first, second, num_predicted = results
    assert first == second == last == [31, {"empty.jpg": "empty file"}]
    assert num_predicted <= 2 * NUM_PARTS
    alone = (tmp_path / "alone.parquet").read_bytes()
    assert (tmp_path / "first/p.parquet").read_bytes() == alone
    assert (tmp_path / "second/p.parquet").read_bytes() == alone
    assert not list(tmp_path.rglob("*.parts"))
