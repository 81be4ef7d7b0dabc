"""A run that resumes keeps the meaning of its weights and of its optimizer's state."""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.training.build_optimizer import build_optimizer
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import (
    AdamConfig,
    AdamWConfig,
    LARSConfig,
    MomentumConfig,
    OptimizerConfig,
    RMSPropConfig,
    StepScheduleConfig,
    TrainConfig,
)
from tpudet.trainkit.training.kept_settings import require_kept_settings
from tpudet.trainkit.training.model_dir import write_run_files
from tpudet.trainkit.training.optimizer_slots import have_same_slots, slot_variables
from tpudet.trainkit.weights.settings import Setting


@dataclass(frozen=True, kw_only=True)
class Config:
    style: str = "caffe"
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def weights_settings(self) -> tuple[Setting, ...]:
        return (Setting("model.style", self.style),)


ADAM = TrainConfig(optimizer=AdamConfig())
RMSPROP = TrainConfig(optimizer=RMSPropConfig())


def read_config(path: str) -> Config:
    return load_config(Config, path)


def save_step(folder: str, step: int) -> None:
    writer = Checkpoints(folder, keep=1)
    writer.prepare()
    writer.save({"weight": np.ones(2), "global_step": np.asarray(step, np.int64)})
    writer.wait()


def refusal(model_dir: str, config: Config, *, trains: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        require_kept_settings(model_dir, config, read_config, trains=trains)
    return str(caught.value)


def test_what_would_change_the_meaning_is_listed_with_the_way_on(ram_dir: str) -> None:
    other = Config(style="keras", train=RMSPROP)
    require_kept_settings(ram_dir, other, read_config, trains=True)
    write_run_files(ram_dir, Config(train=ADAM), "/m/1,cat\n")
    require_kept_settings(ram_dir, other, read_config, trains=True)  # an attempt saved nothing
    save_step(ram_dir, 8)
    prolonged = Config(train=TrainConfig(optimizer=AdamWConfig(), total_steps=99))
    require_kept_settings(ram_dir, prolonged, read_config, trains=True)
    assert refusal(ram_dir, other) == (
        f"{ram_dir}/model.ckpt-8 was trained with other settings, and means something else with "
        "these:\n  model.style: caffe -> keras\n  train.optimizer.kind: adam -> rmsprop\n"
        f"Keep those of {ram_dir}/config.yaml, or choose another model_dir and start it from these "
        f"weights: --set train.weights.path={ram_dir}/model.ckpt-8"
    )
    assert "optimizer" not in refusal(ram_dir, other, trains=False)


def test_the_best_checkpoint_of_a_discarded_training_counts_too(ram_dir: str) -> None:
    """Its optimizer does not: nothing resumes from it."""
    write_run_files(ram_dir, Config(train=ADAM), "/m/1,cat\n")
    save_step(f"{ram_dir}/best", 8)
    require_kept_settings(ram_dir, Config(train=RMSPROP), read_config, trains=True)
    message = refusal(ram_dir, Config(style="keras", train=RMSPROP))
    assert message.startswith(f"{ram_dir}/best/model.ckpt-8 was trained with")
    assert f"remove {ram_dir}/best, if its training is discarded, or choose" in message


KINDS: dict[str, OptimizerConfig] = {
    "adam": AdamConfig(),
    "adamw": AdamWConfig(weight_decay=0.0),
    "momentum": MomentumConfig(),
    "lars": LARSConfig(weight_decay=0.0),
    "rmsprop": RMSPropConfig(),
}


def step_sizes(first: str, second: str) -> tuple[float, float]:
    """The larger of the 50th steps of two optimizers, and that of one after 50 of the other."""
    gradient = tf.fill([3, 1], 2.0)

    def build(kind: str) -> tuple[Any, keras.Variable]:
        variable = keras.Variable(np.ones((3, 1), np.float32), name="kernel")
        rate = StepScheduleConfig(peak=1e-3, warmup_steps=0)
        train = TrainConfig(optimizer=KINDS[kind], learning_rate=rate)
        optimizer = build_optimizer(train, [variable])
        optimizer.build([variable])
        return optimizer, variable

    def step(optimizer: Any, variable: keras.Variable) -> float:
        before = variable.numpy()[0, 0]
        optimizer.apply([gradient], [variable])
        return float(before - variable.numpy()[0, 0])

    one, other = build(first), build(second)
    own = max([step(*built) for _ in range(50)][-1] for built in (one, other))
    states = [slot_variables(*built[:1], [built[1]]) for built in (one, other)]
    for key, slot in states[1].items():
        slot.assign(states[0][key].numpy())
    return own, step(*other)


@pytest.mark.parametrize(
    ("first", "second", "least", "most"),
    [
        ("adam", "adamw", 0.5, 1.1),
        ("adamw", "adam", 0.5, 1.1),
        ("momentum", "lars", 0.8, 1.1),  # 0.9 of the velocity, and next to nothing
        ("lars", "momentum", 0.1, 1.1),  # a first step of 20
        ("adam", "rmsprop", 100, 1000),  # a mean of gradients, taken for a step
        ("rmsprop", "adam", 0, 0.02),
    ],
)
def test_an_optimizer_that_takes_over_makes_no_other_steps_than_the_two(
    first: str, second: str, least: float, most: float
) -> None:
    own, taken_over = step_sizes(first, second)
    assert least <= taken_over / own <= most
    assert have_same_slots(first, second) == (least >= 0.1 and most <= 1.1)


def test_which_kinds_may_take_over() -> None:
    allowed = {(a, b) for a in KINDS for b in KINDS if have_same_slots(a, b) and a < b}
    assert allowed == {("adam", "adamw"), ("lars", "momentum")}
