"""The drawn learning rate: its points computed by hand, and its marks."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.trainkit.training.config import (
    CosineScheduleConfig,
    OneCycleScheduleConfig,
    StepScheduleConfig,
    TrainConfig,
)
from tpudet.trainkit.training.schedule_plot import draw_schedule, schedule_points


def test_the_points_are_all_steps_of_a_short_run() -> None:
    rate = CosineScheduleConfig(peak=0.5, warmup_steps=4, warmup_start=0.1)
    steps, rates = schedule_points(TrainConfig(total_steps=12, learning_rate=rate))
    assert steps.tolist() == list(range(12))
    # A rise of 0.1 per step, then half a cosine over 8 steps.
    np.testing.assert_allclose(rates[[0, 2, 4, 8]], [0.1, 0.3, 0.5, 0.25], rtol=1e-5)


def test_a_long_run_shows_both_sides_of_each_jump() -> None:
    rate = StepScheduleConfig(peak=0.08, drop_steps=(123_457,), drop_rates=(0.008,))
    steps, rates = schedule_points(TrainConfig(total_steps=10_000_000, learning_rate=rate))
    assert len(steps) < 20_100
    before, after = np.searchsorted(steps, [123_456, 123_457])
    assert (steps[before], steps[after]) == (123_456, 123_457)
    np.testing.assert_allclose(rates[[before, after]], [0.08, 0.008], rtol=1e-6)


def test_rates_are_scaled_by_the_batch_over_its_reference() -> None:
    rate = OneCycleScheduleConfig(peak=0.08)
    train = TrainConfig(
        total_steps=100, learning_rate=rate, batch_size=32, reference_batch_size=128
    )
    _, rates = schedule_points(train)
    assert rates.max() == pytest.approx(0.02)
    title = draw_schedule(train, eval_every_steps=1000, title="mine").axes[0].get_title()
    assert title == "mine: one_cycle, 100 steps, rates x 0.25 for a batch of 32"


def test_marks_stand_at_every_evaluation_and_the_end() -> None:
    rate = CosineScheduleConfig(peak=0.5, warmup_steps=200)
    train = TrainConfig(total_steps=2500, learning_rate=rate)
    for axes in draw_schedule(train, eval_every_steps=1000, title="").axes:
        _, marks = axes.lines
        assert list(np.asarray(marks.get_xdata())) == [1000, 2000, 2500]
        (shade,) = axes.patches
        left, right = shade.get_extents().transformed(axes.transData.inverted()).intervalx
        assert (round(left), round(right)) == (0, 200)


@pytest.mark.parametrize("start", [0.0, 0.1])
def test_a_run_that_is_all_warmup_says_so_and_is_drawn(tmp_path: Path, start: float) -> None:
    """One step at the warm-up's start: at a rate of 0 there is nothing for a logarithm."""
    rate = CosineScheduleConfig(peak=0.5, warmup_steps=5, warmup_start=start)
    train = TrainConfig(total_steps=1, learning_rate=rate)
    assert schedule_points(train)[1].tolist() == pytest.approx([start])
    figure = draw_schedule(train, eval_every_steps=1000, title="short")
    figure.savefig(tmp_path / "rate.png")
    words = "shaded: all 1 steps are warm-up, 5 long: the learning rate never reaches its peak; "
    assert figure.get_supxlabel() == f"{words}marks: 1 evaluations"
