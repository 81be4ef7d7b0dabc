"""A run in its model_dir: one trainer and one evaluator, and none of another model."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claims import ClaimError
from tpudet.trainkit.record_splits import Split
from tpudet.trainkit.training.build_training import Training
from tpudet.trainkit.training.checkpoint_match import CheckpointMismatchError
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.evaluator import Evaluation, EvaluationSettings
from tpudet.trainkit.training.model_dir import compare_run, write_run_files
from tpudet.trainkit.training.modes import Mode, claim_model_dir, run_training
from tpudet.trainkit.training.run_log import Ledger
from tpudet.trainkit.weights.settings import Setting

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
class Schedule:
    every_steps: int = 500


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    schedule: Schedule = field(default_factory=Schedule)


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 8
    style: str = "caffe"
    train: TrainConfig = field(default_factory=TrainConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    measured: str = "val by coco"

    @property
    def weights_settings(self) -> tuple[Setting, ...]:
        return (Setting("style", self.style),)


CLASSES = "/m/1,cat\n"
SPLIT = Split([__file__], [1], 1)
EVALUATION = EvaluationSettings(
    evaluate=lambda step: Evaluation({}, {}), every_steps=1, best_metric="AP", headline=()
)


def save_step(model_dir: str, step: int) -> None:
    writer = Checkpoints(model_dir, keep=1)
    writer.save({"weight": np.ones(2), "global_step": np.asarray(step, np.int64)})
    writer.wait()


def run(
    model_dir: str,
    config: Config,
    *,
    mode: Mode = "train",
    shape: int = 2,
    evaluation: EvaluationSettings | None = None,
) -> int:
    signature = {"weight": ((shape,), "float64"), "global_step": ((), "int64")}
    engine: Any = SimpleNamespace(is_chief=True, num_processes=1, signature=lambda: signature)
    training: Any = Training(None, engine, None, None, None)  # pyright: ignore[reportArgumentType]
    return run_training(
        config,
        training,
        mode=mode,
        model_dir=model_dir,
        class_list_text=CLASSES,
        train_split=SPLIT,
        load_config=lambda path: load_config(Config, path),
        evaluation=evaluation,
    )


def test_a_run_of_another_model_is_refused_and_leaves_the_config_of_the_first(
    ram_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_run_files(ram_dir, Config(), CLASSES)
    save_step(ram_dir, 8)
    with pytest.raises(CheckpointMismatchError) as caught:
        run(ram_dir, Config(steps=9), shape=3)
    assert "weight: float64 [2] in the checkpoint, float64 [3] here" in str(caught.value)
    assert str(caught.value).endswith(f": --set train.weights.path={ram_dir}/model.ckpt-8")
    assert load_config(Config, f"{ram_dir}/config.yaml").steps == 8
    assert "Changed since the run began: steps: 8 -> 9" in caplog.text


@pytest.mark.parametrize("name", ["config.yaml", "classes.csv"])
def test_checkpoints_without_what_describes_them_are_warned_of(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_run_files(str(tmp_path), Config(), CLASSES)
    (tmp_path / name).unlink()
    compare_run(str(tmp_path), Config(), CLASSES, lambda path: load_config(Config, path))
    assert caplog.text == ""  # an attempt that saved nothing
    save_step(str(tmp_path), 8)
    compare_run(str(tmp_path), Config(), CLASSES, lambda path: load_config(Config, path))
    assert f"{tmp_path} has checkpoints but no {name}: " in caplog.text


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("folder", ["", "/best"])
def test_settings_that_change_the_meaning_of_weights_are_refused(
    mode: Mode, folder: str, ram_dir: str
) -> None:
    """Evaluation, export and a restart would take the others' pixels for the run's own."""
    write_run_files(ram_dir, Config(), CLASSES)
    save_step(f"{ram_dir}{folder}", 8)
    with pytest.raises(ConfigError, match=r"\n  style: caffe -> keras\n"):
        run(ram_dir, Config(style="keras", steps=9), mode=mode)
    assert load_config(Config, f"{ram_dir}/config.yaml") == Config()


def test_an_evaluator_that_began_before_its_trainer_records_nothing_of_other_settings(
    ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainer_begins(**where: Any) -> int:
        where["verify"]()  # there is no checkpoint yet
        write_run_files(ram_dir, Config(), CLASSES)
        where["verify"]()
        save_step(ram_dir, 8)
        where["verify"]()
        raise AssertionError("it would be recorded")

    monkeypatch.setattr("tpudet.trainkit.training.loop.evaluate_checkpoints", trainer_begins)
    with pytest.raises(ConfigError, match="style: caffe -> keras"):
        run(ram_dir, Config(style="keras"), mode="eval", evaluation=EVALUATION)


@pytest.mark.parametrize("mode", ["eval", "train_and_eval"])
def test_evaluations_of_two_splits_are_not_compared_under_one_name(
    mode: Mode, ram_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ledger: the evaluator's split may be another than its trainer's."""
    seen = []

    def evaluate(evaluation: EvaluationSettings | None = None, **settings: Any) -> int:
        seen.append(evaluation.measured if evaluation else settings["evaluate_every_steps"])
        return 0

    for name in ("evaluate_checkpoints", "train_and_eval", "train"):
        monkeypatch.setattr(f"tpudet.trainkit.training.loop.{name}", evaluate)
    write_run_files(ram_dir, Config(measured="train by coco"), CLASSES)
    save_step(ram_dir, 8)
    ledger = Ledger(ram_dir)
    ledger.append("eval", 4, {"AP": 0.1})  # of an earlier version
    ledger.append("eval", 8, {"AP": 0.5, "measured": "val by coco"})
    ledger.append("eval", 12, {"AP": 0.5, "measured": "fold_1 by coco"})  # to be redone
    assert run(ram_dir, Config(), mode=mode, evaluation=EVALUATION) == 0
    assert seen == ["val by coco"]
    longer = Config(measured="val by coco, all images")  # of which an earlier version said less
    assert run(ram_dir, longer, mode=mode, evaluation=EVALUATION) == 0
    described = load_config(Config, f"{ram_dir}/config.yaml")
    other = Config(measured="test by coco")
    with pytest.raises(UserError, match=r"are of val by coco, and now .* of test by coco: best/"):
        run(ram_dir, other, mode=mode, evaluation=EVALUATION)
    assert load_config(Config, f"{ram_dir}/config.yaml") == described
    assert run(ram_dir, other, mode="train") == 0
    assert seen[-1] == 500  # and saves what another process evaluates
