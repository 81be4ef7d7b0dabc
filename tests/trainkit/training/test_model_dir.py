"""The files that describe a run, and which checkpoint "best" is."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint, forget_best
from tpudet.trainkit.training.checkpoints import Checkpoint, Checkpoints
from tpudet.trainkit.training.model_dir import compare_run, select_checkpoint, write_run_files

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
