"""The files that describe a run, and which checkpoint "best" is."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint, forget_best
from tpudet.trainkit.training.checkpoints import Checkpoint, Checkpoints
from tpudet.trainkit.training.model_dir import (
    compare_run,
    require_own_config,
    select_checkpoint,
    write_run_files,
)
from tpudet.trainkit.training.start import resolve_start

CLASSES = "/m/1,cat\n/m/2,dog\n"


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 1


def read_config(path: str) -> Config:
    return load_config(Config, path)


def test_a_comparison_writes_nothing_and_refuses_other_classes(ram_dir: str) -> None:
    compare_run(ram_dir, Config(steps=7), CLASSES, read_config)
    assert tf.io.gfile.listdir(ram_dir) == []
    write_run_files(ram_dir, Config(steps=3), CLASSES)
    compare_run(ram_dir, Config(steps=7), CLASSES, read_config)
    assert read_config(f"{ram_dir}/config.yaml") == Config(steps=3)
    with pytest.raises(ConfigError, match="class 2 was /m/2,dog, now /m/3,cow"):
        compare_run(ram_dir, Config(), "/m/1,cat\n/m/3,cow\n", read_config)


@pytest.mark.parametrize("text", ["# my experiment\nbase: quickstart\n", ""])
def test_a_config_that_a_user_wrote_is_not_replaced(text: str, tmp_path: Path) -> None:
    """Its comments and its `base:` would be lost."""
    require_own_config(f"{tmp_path}/none")
    write_run_files(f"{tmp_path}/run", Config(), CLASSES)
    require_own_config(f"{tmp_path}/run")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="does not begin with `# Written by tpudet`"):
        require_own_config(str(tmp_path))


@pytest.mark.parametrize("there", ["detection", "classification"])
def test_a_run_of_another_task_is_named_as_such(there: str, tmp_path: Path) -> None:
    first_key = "task: classification" if there == "classification" else "model: {}"
    text = f"# Written by tpudet, commit 0\n{first_key}\n"
    (tmp_path / "config.yaml").write_text(text)
    here = {"detection": "classification", "classification": "detection"}[there]
    own = SimpleNamespace(task=here) if here == "classification" else Config()
    with pytest.raises(ConfigError) as caught:
        resolve_start(own, num_images=1, model_dir=str(tmp_path), resolve_auto=lambda *_: None)
    assert str(caught.value) == (
        f"{tmp_path} holds a run of the task {there}, by its config.yaml, and this experiment is "
        f"of the task {here}: choose another --model_dir"
    )


def test_a_config_of_the_user_is_refused_before_a_training_and_not_before_an_evaluation(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("train: {}\n")

    def start(*, trains: bool) -> None:
        resolve_start(
            Config(),
            num_images=1,
            model_dir=str(tmp_path),
            trains=trains,
            resolve_auto=lambda *_: None,
        )

    with pytest.raises(ConfigError, match="Move it out of the model_dir"):
        start(trains=True)
    with pytest.raises(AttributeError):  # it continues, to a field that this Config lacks
        start(trains=False)


@pytest.mark.parametrize("step", ["\u00b2", "-1", "8.0", "9"])
def test_a_step_that_is_none_of_the_checkpoints_is_refused(step: str, ram_dir: str) -> None:
    save_step(ram_dir, 8)
    with pytest.raises(ConfigError, match=f"no checkpoint of step `{step}`; it has: 8$"):
        select_checkpoint(ram_dir, step)


def save_step(directory: str, step: int) -> Checkpoint:
    writer = Checkpoints(directory, keep=1)
    saved = writer.save({"weight": np.ones(2), "global_step": np.asarray(step, np.int64)})
    writer.wait()
    return saved


def test_the_best_checkpoint_is_the_recorded_one(ram_dir: str) -> None:
    BestCheckpoint(ram_dir, metric="AP").keep(save_step(ram_dir, 8), 0.5)
    assert select_checkpoint(ram_dir, "best").prefix == f"{ram_dir}/best/model.ckpt-8"
    forget_best(ram_dir, beyond=8)
    assert select_checkpoint(ram_dir, "best").step == 8
    forget_best(ram_dir, beyond=None)  # a new training has begun
    with pytest.raises(ConfigError, match="no checkpoint of step `best`; it has: 8$"):
        select_checkpoint(ram_dir, "best")
    assert select_checkpoint(ram_dir, "8").step == 8


def test_the_latest_is_of_the_training_that_goes_on_not_of_a_discarded_one(ram_dir: str) -> None:
    save_step(f"{ram_dir}/best", 5000)
    assert select_checkpoint(ram_dir, "latest").step == 5000  # all that is left of the training
    save_step(ram_dir, 2000)
    assert select_checkpoint(ram_dir, "latest").step == 2000
    assert select_checkpoint(ram_dir, "5000").prefix == f"{ram_dir}/best/model.ckpt-5000"
