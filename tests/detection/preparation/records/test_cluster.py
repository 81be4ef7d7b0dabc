"""Shards made on a Ray cluster that loses a node are, byte for byte, those of one process."""

import subprocess
import sys
from pathlib import Path

from tpudet.detection.commands import make_tfrecords

NUM_SHARDS = 24


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_node_is_lost_amid(two_nodes, wait_for, write_coco, encoded_image, tmp_path) -> None:
    # Large images that must be encoded anew: slow enough to lose the node amid a shard.
    content = encoded_image(width=1200, height=900, kind="WEBP")
    names = [f"{number:02d}.jpg" for number in range(8 * NUM_SHARDS)]
    boxes = {name: [(3, number, 0, 10, 10)] for number, name in enumerate(names)}
    sizes = dict.fromkeys(names, (1200, 900))
    path, images = write_coco(dict.fromkeys(names, content), boxes, sizes)
    source = ["--format", "coco", "--annotations", path, "--images", images]
    source = [str(part) for part in (*source, "--split", "train", "--num_shards", NUM_SHARDS)]
    alone, output = tmp_path / "alone/part", tmp_path / "together/part"
    assert make_tfrecords.main([*source, "--output", str(alone), "--workers", "1"]) == 0

    command = [sys.executable, "-m", "tpudet", "make_tfrecords", *source]
    command += ["--output", "together/part", "--cluster", "auto"]
    progress = output / "train_part.progress"

    def at_work() -> int:
        others = {path.name for path in progress.glob("*.tfrecord.*")}
        return sum(not name.endswith((".offsets", ".json")) for name in others)

    def finished() -> int:
        return len(list(progress.glob("*.tfrecord.json")))

    # One node is removed while shards are being made and most are still waiting.
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=two_nodes.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_for(lambda: finished() >= 1 and at_work() >= 1, process)
        two_nodes.remove_node()
        before = finished()
        printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert before < NUM_SHARDS
    assert "The cluster lost a node, 2 left" in errors
    assert "raylet" not in printed + errors  # Ray's own words
    assert contents(output) == contents(alone)
