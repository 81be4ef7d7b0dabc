"""Loggers of a run, offline: several at once, a run that resumes, a package that is missing."""

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training import loggers
from tpudet.trainkit.training.config import LoggerName, TrainConfig
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


class Service:
    """A client that remembers the calls, with their named arguments, and refuses some."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.failing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append((name, named))
            if name in self.failing:
                raise ConnectionError(f"{name} is refused")
            return SimpleNamespace(info=SimpleNamespace(run_id="7"), experiment_id="0")

        return call


def writers_to(
    wandb: Service, mlflow: Service, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WandbWriter, MlflowWriter]:
    """The writers, with services in the place of both packages."""
    modules = {
        "wandb": SimpleNamespace(init=lambda **named: wandb, Image=lambda value: value),
        "mlflow": SimpleNamespace(MlflowClient=lambda: mlflow),
        "mlflow.entities": SimpleNamespace(Metric=lambda *values: values),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return WandbWriter(str(model_dir)), MlflowWriter(str(model_dir))


def test_all_loggers_get_what_is_written() -> None:
    one, other = Notebook(), Notebook()
    writer = JoinedWriter([one, other])
    writer.write("train", 5, {"loss": 0.5})
    writer.close(failed=True)
    assert one.lines == other.lines == [("train", 5, {"loss": 0.5})]
    assert one.failed is other.failed is True


@pytest.mark.parametrize("failed", [True, False])
def test_a_run_that_failed_is_shown_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    """By the words that the documentation of either gives."""
    wandb, mlflow = Service(), Service()
    for writer in writers_to(wandb, mlflow, tmp_path, monkeypatch):
        writer.close(failed=failed)
    assert wandb.calls[-1] == ("finish", {"exit_code": int(failed)})
    assert mlflow.calls[-1] == ("set_terminated", {"status": "FAILED" if failed else "FINISHED"})


def test_a_service_that_fails_is_one_line_for_each_kind_of_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not fail is still written: MLflow's numbers beside an image that it refuses."""
    wandb, mlflow = Service(), Service()
    writers = writers_to(wandb, mlflow, tmp_path, monkeypatch)
    wandb.failing |= {"log", "finish"}
    mlflow.failing |= {"log_image", "set_terminated"}
    with caplog.at_level(logging.WARNING):
        for writer in writers:
            for step in (5, 10):
                writer.write("eval", step, {"AP": 0.5, "drawn": IMAGE})
            writer.close()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "Weights & Biases did not take the values of step 5",
        "Weights & Biases did not take the end of the run",
        "MLflow did not take an image of step 5",
        "MLflow did not take the end of the run",
    ]
    assert "ConnectionError: log is refused" in caplog.records[0].getMessage()
    assert [name for name, _ in mlflow.calls].count("log_batch") == 2
    wandb.failing.clear()
    writers[0].write("eval", 15, {"AP": 0.5})
    assert wandb.calls[-1] == ("log", {})


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_service_that_cannot_be_opened_ends_only_a_run_that_begins(
    name: LoggerName,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    service = Service()
    service.failing = {"init", "update_run", "create_run"}
    modules = {"wandb": service, "mlflow": SimpleNamespace(MlflowClient=lambda: service)}
    monkeypatch.setitem(sys.modules, name, modules[name])
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=None))
    with pytest.raises(UserError, match=f"{name} does not open the run: ConnectionError: "):
        open_loggers([name], str(tmp_path), restored_step=None)
    # Its run was removed there meanwhile, or the network is down: nobody sits beside a restart.
    (tmp_path / "mlflow_run_id.txt").write_text("removed\n")
    with caplog.at_level(logging.WARNING):
        writer = open_loggers([name, "tensorboard"], str(tmp_path), restored_step=40)
    writer.write("train", 41, {"loss": 1.0})
    writer.close()
    assert "The run resumes without it" in caplog.text
    assert list(tmp_path.rglob("events*"))


def test_all_writers_are_closed_where_one_cannot_be() -> None:
    class Torn(Notebook):
        def close(self, *, failed: bool = False) -> None:
            raise OSError("no room")

    other = Notebook()
    with pytest.raises(OSError, match="no room"):
        JoinedWriter([Torn(), other]).close(failed=True)
    assert other.failed is True


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
