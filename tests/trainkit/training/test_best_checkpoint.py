"""The copy of the best checkpoint in `best/`, over restarts and torn files."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.trainkit.training.best_checkpoint import BestCheckpoint, BestRecord
from tpudet.trainkit.training.checkpoints import (
    Checkpoint,
    Checkpoints,
    UnreadableCheckpointError,
    list_checkpoints,
    read_checkpoint,
)

DATA, INDEX = ".data-00000-of-00001", ".index"


def save_steps(directory: str, *steps: int) -> Checkpoints:
    writer = Checkpoints(directory, keep=5)
    writer.prepare()
    for step in steps:
        writer.save({"weight": np.ones(3, np.float32), "global_step": np.asarray(step, np.int64)})
    writer.wait()
    return writer


def test_the_best_one_stays_apart_over_a_restart(ram_dir: str) -> None:
    writer = save_steps(ram_dir, 10, 20, 30)
    best = BestCheckpoint(ram_dir, metric="AP50")
    best.prepare()
    for checkpoint, value in zip(writer.published, (0.5, 0.7, 0.6), strict=True):
        if best.is_better(value):
            best.keep(checkpoint, value)
    assert not best.is_better(float("nan"))
    again = BestCheckpoint(ram_dir, metric="AP50")
    again.prepare()
    assert again.record == BestRecord("AP50", 0.7, 20)
    assert not again.is_better(0.7)
    assert [found.step for found in list_checkpoints(f"{ram_dir}/best")] == [20]
    assert int(read_checkpoint(f"{ram_dir}/best")["global_step"]) == 20


def test_a_best_one_that_cannot_be_copied_leaves_the_former(tmp_path: Path) -> None:
    writer = save_steps(str(tmp_path), 10, 20)
    best = BestCheckpoint(str(tmp_path), metric="AP50")
    best.keep(writer.published[0], 0.1)
    (tmp_path / f"model.ckpt-20{DATA}").write_bytes(b"torn")
    with pytest.raises(UnreadableCheckpointError):
        best.keep(writer.published[1], 0.2)
    with pytest.raises(UnreadableCheckpointError, match="gone"):
        best.keep(Checkpoint(30, str(tmp_path / "model.ckpt-30")), 0.3)
    assert best.record == BestRecord("AP50", 0.1, 10)
    best.prepare()
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "best.json",
        "checkpoint",
        f"model.ckpt-10{DATA}",
        f"model.ckpt-10{INDEX}",
    ]
