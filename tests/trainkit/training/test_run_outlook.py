"""The log before a run begins: its length by the data, its learning rate, what is odd."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tpudet.trainkit.config.idle_keys import IdleKeys
from tpudet.trainkit.training.build_optimizer import drops_warning
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import (
    CosineScheduleConfig,
    RangeTestScheduleConfig,
    StepScheduleConfig,
    TrainConfig,
)
from tpudet.trainkit.training.run_outlook import (
    Done,
    describe_learning_rate,
    log_plan,
    with_total_steps,
)
from tpudet.trainkit.training.start import read_done

COSINE = CosineScheduleConfig(peak=0.08)


def config(**values: Any) -> TrainConfig:
    return TrainConfig(learning_rate=COSINE, **values)


def test_epochs_become_steps_rounded_up() -> None:
    """2.5 epochs of 205 images are 512.5 images: 65 steps of 8."""
    train = config(total_steps=600, batch_size=8, total_epochs=2.5)
    assert with_total_steps(train, 205).total_steps == 65
    assert with_total_steps(train, 205).total_epochs == 2.5  # so that a resumed run finds as many
    assert with_total_steps(config(total_steps=600), 205).total_steps == 600
    assert with_total_steps(config(total_epochs=0.001, batch_size=64), 205).total_steps == 1


def test_another_batch_size_on_resume_ends_after_as_many_epochs() -> None:
    """10 epochs of 3,000 images: half of them in 1,875 steps of 8, the rest in 3,750 of 4."""
    train = config(total_epochs=10.0, batch_size=4)
    assert with_total_steps(train, 3000).total_steps == 7500
    done = Done(steps=1875, records=15_000, batch_size=8, total_steps=3750)
    assert with_total_steps(train, 3000, done=done).total_steps == 5625
    # Its own restart, and back to 8 after 2,000 steps of 4: 7,000 images remain.
    done = Done(steps=3875, records=23_000, batch_size=4, total_steps=5625)
    assert with_total_steps(train, 3000, done=done).total_steps == 5625
    train = dataclasses.replace(train, batch_size=8)
    assert with_total_steps(train, 3000, done=done).total_steps == 3875 + 875
    # More than there are epochs: nothing remains.
    done = done._replace(records=31_000)
    assert with_total_steps(train, 3000, done=done).total_steps == 3875


def test_steps_that_loss_scaling_skipped_do_not_shorten_the_plan() -> None:
    """Five batches of 8 were consumed beyond the 1,000 steps that count."""
    train = config(total_epochs=10.0, batch_size=8)
    done = Done(steps=1000, records=8040, batch_size=8, total_steps=3750)
    assert with_total_steps(train, 3000, done=done).total_steps == 3750


def test_what_is_done_is_read_from_the_newest_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("train: {batch_size: 8, total_steps: 3750}\n")
    assert read_done(str(tmp_path)) is None
    checkpoints = Checkpoints(str(tmp_path), keep=2)
    for step in (1000, 1875):
        checkpoints.save({"global_step": np.array(step), "records_consumed": np.array(8 * step)})
    checkpoints.wait()
    assert read_done(str(tmp_path)) == Done(1875, 15_000, batch_size=8, total_steps=3750)


def test_steps_beside_epochs_in_one_file_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A run's own config.yaml has both, which agree: 2.5 x 205 / 8 is 65 steps."""
    both = config(total_steps=65, batch_size=8, total_epochs=2.5)
    assert with_total_steps(both, 205) == both
    assert not caplog.messages
    with_total_steps(dataclasses.replace(both, total_steps=600), 205)
    words = "train.total_steps 600 has no effect beside train.total_epochs 2.5, which are 65 steps"
    assert words in caplog.text


def test_the_rate_that_results_from_the_batch_is_named() -> None:
    assert describe_learning_rate(config(batch_size=8, reference_batch_size=64)) == (
        "Learning rate: cosine, at most 0.01: 0.08 x 8 / 64, as it is given for batches of 64"
    )
    assert describe_learning_rate(config(batch_size=64, reference_batch_size=64)) == (
        "Learning rate: cosine, at most 0.08"
    )
    assert "there is no train.reference_batch_size" in describe_learning_rate(config())


def test_drops_that_never_come_are_named() -> None:
    rate = StepScheduleConfig(
        peak=0.1, warmup_steps=0, drop_steps=(50, 1000), drop_rates=(0.01, 0.001)
    )
    train = TrainConfig(learning_rate=rate, total_steps=1000)
    assert drops_warning(train) == (
        "training ends at step 1,000, before the learning rate drops at 1,000"
    )
    assert not drops_warning(config(total_steps=1))


def test_a_range_test_ends_at_its_highest_rate() -> None:
    train = TrainConfig(learning_rate=RangeTestScheduleConfig(start=1e-6, end=0.5))
    assert describe_learning_rate(train).startswith("Learning rate: range_test, at most 0.5,")


def test_the_plan_names_its_end_and_the_keys_without_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """10 epochs of 3,000 images that end at step 5,625, as after half of them in batches of 8."""
    rate = dataclasses.replace(COSINE, warmup_steps=0, warmup_start=0.01)
    train = TrainConfig(learning_rate=rate, total_epochs=10.0, total_steps=5625, batch_size=4)
    with caplog.at_level("INFO"):
        log_plan(
            train,
            model=keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
            kind="retinanet",
            canvas_size=(64, 96),
            num_images=3000,
            num_classes=3,
            num_devices=1,
            idle_keys=[IdleKeys("data", train, TrainConfig(), ("batch_size",), "for once")],
        )
    assert caplog.messages[:2] == [
        "retinanet: 3 parameters, 3 classes, canvas 64x96, precision float32, 1 device",
        "3000 training images; with 4 per step, 10.0 epochs end at step 5625",
    ]
    idle = "data.batch_size: for once; train.learning_rate.warmup_start: there is no warm-up"
    assert caplog.records[-1].message == idle
    assert caplog.records[-1].levelname == "WARNING"
