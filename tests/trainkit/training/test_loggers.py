"""Loggers of a run, offline: several at once, a run that resumes, a package that is missing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import loggers
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.loggers import (
    JoinedWriter,
    MlflowWriter,
    WandbWriter,
    check_loggers,
    open_loggers,
)

IMAGE = np.zeros((8, 12, 3), np.uint8)


class Notebook:
    """A writer that remembers."""

    def __init__(self) -> None:
        self.lines: list[tuple] = []
        self.failed: bool | None = None

    def write(self, kind, step, values) -> None:
        self.lines.append((kind, step, dict(values)))

    def close(self, *, failed: bool = False) -> None:
        self.failed = failed


def test_all_loggers_get_what_is_written() -> None:
    one, other = Notebook(), Notebook()
    writer = JoinedWriter([one, other])
    writer.write("train", 5, {"loss": 0.5})
    writer.close(failed=True)
    assert one.lines == other.lines == [("train", 5, {"loss": 0.5})]
    assert one.failed is other.failed is True


@pytest.mark.parametrize("failed", [True, False])
def test_a_run_that_failed_is_shown_as_failed(tmp_path: Path, failed: bool) -> None:
    """By the words that the documentation of either gives."""
    ends: list[Any] = []
    wandb, mlflow = WandbWriter.__new__(WandbWriter), MlflowWriter.__new__(MlflowWriter)
    wandb._run = SimpleNamespace(finish=lambda exit_code: ends.append(exit_code))
    mlflow._run_id = "7"
    mlflow._client = SimpleNamespace(set_terminated=lambda run, status: ends.append(status))
    wandb.close(failed=failed)
    mlflow.close(failed=failed)
    assert ends == ([1, "FAILED"] if failed else [0, "FINISHED"])


def test_missing_packages_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    check_loggers(["tensorboard"])
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"wandb, mlflow.*pip install 'tpudet\[wandb,mlflow\]'"):
        check_loggers(["tensorboard", "wandb", "mlflow"])


def test_a_config_names_loggers() -> None:
    assert TrainConfig().loggers == ("tensorboard",)
    chosen = decode(TrainConfig, parse_tree("loggers: [wandb, mlflow]", "x.yaml"))
    assert chosen.loggers == ("wandb", "mlflow")
    with pytest.raises(ConfigError, match="loggers"):
        decode(TrainConfig, parse_tree("loggers: [tensorbord]", "x.yaml"))


def test_mlflow_holds_one_run_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra [mlflow] is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "cells")
    model_dir = tmp_path / "lite0-cells"
    model_dir.mkdir()
    for restored, step in ((None, 5), (5, 10)):
        writer = open_loggers(["mlflow"], str(model_dir), restored_step=restored)
        writer.write("eval", step, {"AP/<b> & c": step / 10, "AP": float("nan"), "drawn": IMAGE})
        writer.close()
    client = mlflow.MlflowClient(tracking_uri=f"file://{tmp_path}/store")
    experiment = client.get_experiment_by_name("cells")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("lite0-cells", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "eval/AP/_b_ _ c")
    assert [(point.step, point.value) for point in history] == [(5, 0.5), (10, 1.0)]
    assert set(run.data.metrics) == {"eval/AP/_b_ _ c"}
    images = client.list_artifacts(run.info.run_id, "eval/drawn")
    assert [Path(image.path).name for image in images] == ["00000005.png", "00000010.png"]


def test_wandb_holds_one_run_over_a_restart_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra [wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    model_dir = tmp_path / "lite0-cells"
    model_dir.mkdir()
    for restored, step in ((None, 5), (5, 10)):
        writer = open_loggers(["wandb"], str(model_dir), restored_step=restored)
        writer.write("train", step, {"loss": 0.5, "drawn": IMAGE})
        writer.close()
    run_id = (model_dir / "wandb_run_id.txt").read_text().strip()
    folders = sorted((model_dir / "wandb").glob("offline-run-*"))
    assert folders
    assert {folder.name.rpartition("-")[2] for folder in folders} == {run_id}
    assert any(b"train/loss" in log.read_bytes() for log in (model_dir / "wandb").rglob("*.wandb"))
    assert list((model_dir / "wandb").rglob("*.png"))
