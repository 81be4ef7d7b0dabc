"""A run in its model_dir: one trainer and one evaluator, and none of another model."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.checkpoints import CheckpointMismatchError, Checkpoints
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.model_dir import describe_run
from tpudet.trainkit.training.modes import Mode, claim_model_dir, run_training

HoldClaim = Callable[[Path], AbstractContextManager[int]]


@pytest.mark.parametrize(
    ("held", "refused", "allowed"),
    [
        ("train", ("train", "train_and_eval"), "eval"),
        ("eval", ("eval", "train_and_eval"), "train"),
    ],
)
def test_a_second_process_is_told_who_writes(
    held: str, refused: tuple[Mode, ...], allowed: Mode, tmp_path: Path, hold_claim: HoldClaim
) -> None:
    with hold_claim(tmp_path / f"{held}.claim.json") as process:
        for mode in refused:
            with (
                pytest.raises(ClaimError, match=f"process {process} on .* since"),
                claim_model_dir(str(tmp_path), mode, is_chief=True),
            ):
                raise AssertionError("two processes in one folder")
        with claim_model_dir(str(tmp_path), allowed, is_chief=True) as verify:
            verify()
        with claim_model_dir(str(tmp_path), refused[0], is_chief=False) as verify:
            verify()  # a worker beside the chief writes nothing
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True, kw_only=True)
class Config:
    style: str
    train: TrainConfig = field(default_factory=TrainConfig)


def test_a_run_of_another_model_is_refused_and_leaves_the_config_of_the_first(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whose restart would else take the other's pixels and strides for its own."""
    path, classes = f"{ram_dir}/config.yaml", "/m/1,cat\n"
    describe_run(ram_dir, Config(style="caffe"), classes)
    writer = Checkpoints(ram_dir, keep=1)
    writer.save({"weight": np.ones(2), "global_step": np.asarray(8, np.int64)})
    writer.wait()
    signature = {"weight": ((3,), "float64"), "global_step": ((), "int64")}
    engine: Any = SimpleNamespace(is_chief=True, num_processes=1, signature=lambda: signature)
    training: Any = Training(None, engine, None, None, None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointMismatchError, match=r"weight: float64 \[2\] in the checkpoint"):
        run_training(
            Config(style="keras"),
            training,
            mode="train",
            model_dir=ram_dir,
            class_list_text=classes,
            load_config=lambda path: load_config(Config, path),
            evaluation=None,
        )
    assert load_config(Config, path).style == "caffe"
    assert "Changed since the run began: style: caffe -> keras" in caplog.text
