"""The files that describe a run, and which checkpoint "best" is."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.training.best_checkpoint import BestCheckpoint, forget_best
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.model_dir import describe_run, select_checkpoint

CLASSES = "/m/1,cat\n/m/2,dog\n"


@dataclass(frozen=True, kw_only=True)
class Config:
    steps: int = 1


def read_config(path: str) -> Config:
    return load_config(Config, path)


def test_an_evaluator_leaves_the_config_to_the_trainer(ram_dir: str) -> None:
    describe_run(ram_dir, Config(steps=7), CLASSES, read_config, writes=False)
    assert tf.io.gfile.listdir(ram_dir) == []
    describe_run(ram_dir, Config(steps=3), CLASSES, read_config)
    describe_run(ram_dir, Config(steps=7), CLASSES, read_config, writes=False)
    assert read_config(f"{ram_dir}/config.yaml") == Config(steps=3)
    with pytest.raises(ConfigError, match="class 2 was /m/2,dog, now /m/3,cow"):
        describe_run(ram_dir, Config(), "/m/1,cat\n/m/3,cow\n", read_config, writes=False)


def test_the_best_checkpoint_is_the_recorded_one(ram_dir: str) -> None:
    writer = Checkpoints(ram_dir, keep=1)
    saved = writer.save({"weight": np.ones(2), "global_step": np.asarray(8, np.int64)})
    writer.wait()
    BestCheckpoint(ram_dir, metric="AP").keep(saved, 0.5)
    assert select_checkpoint(ram_dir, "best").prefix == f"{ram_dir}/best/model.ckpt-8"
    forget_best(ram_dir, beyond=8)
    assert select_checkpoint(ram_dir, "best").step == 8
    forget_best(ram_dir, beyond=None)  # a new training has begun
    with pytest.raises(ConfigError, match="no checkpoint of step `best`; it has: 8$"):
        select_checkpoint(ram_dir, "best")
    assert select_checkpoint(ram_dir, "8").step == 8
