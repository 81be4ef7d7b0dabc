"""The range test: rates by formula, where it ends, what it suggests, and that nothing remains."""

import re
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.training.build_optimizer import build_schedule
from tpudet.trainkit.training.config import StepScheduleConfig, TrainConfig
from tpudet.trainkit.training.engine import NonfiniteStep, StepReport
from tpudet.trainkit.training.lr_finder import (
    RangeTest,
    draw_range_test,
    find_learning_rate,
    range_test_config,
    suggest,
    write_range_test,
)
from tpudet.trainkit.training_arguments import add_range_test_arguments, add_training_arguments


class StandIn:
    """An engine whose losses are given."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses
        self.step = 0
        self.log: list[str] = []

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"step": np.array(self.step)}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.step = int(arrays["step"])
        self.log.append("load")

    def restart_input(self) -> None:
        self.log.append("restart_input")

    def train(self, num_steps: int) -> StepReport:
        assert num_steps == 1
        loss = self.losses[self.step]
        self.step += 1
        if np.isnan(loss):
            return StepReport({}, 0, 0.0, 0.0, 1.0, NonfiniteStep(self.step, {"loss": loss}, []))
        return StepReport({"loss": loss}, 1, 0.0, 10.0**self.step, 1.0, None)


def test_rates_grow_by_the_same_factor_whatever_the_batch_size() -> None:
    train = range_test_config(TrainConfig(batch_size=64), start=1e-8, end=100.0, num_steps=11)
    rates = np.asarray(build_schedule(train)(np.arange(11)))
    np.testing.assert_allclose(rates, np.logspace(-8, 2, 11), rtol=1e-4)
    assert train.total_steps == 11


def test_it_ends_where_the_smoothed_loss_is_five_times_the_lowest_and_restores_the_engine() -> None:
    """After nine losses of 1, 0.95 + 0.05 x 100 is 5.95."""
    engine = StandIn([1.0] * 9 + [100.0] + [1.0] * 10)
    found = find_learning_rate(engine, 20)  # pyright: ignore[reportArgumentType]
    assert found.losses == [1.0] * 9 + [100.0]
    assert found.smoothed[-1] == pytest.approx(5.95)
    assert found.rates == pytest.approx([10.0**k for k in range(1, 11)])
    assert (engine.step, engine.log) == (0, ["load", "restart_input"])


def test_a_loss_that_is_not_finite_ends_it_too() -> None:
    engine = StandIn([1.0, 2.0, float("nan")])
    found = find_learning_rate(engine, 20)  # pyright: ignore[reportArgumentType]
    assert found.smoothed == pytest.approx([1.0, 1.05])
    assert found.suggestion is None
    assert found.nonfinite is not None
    assert found.nonfinite.step == 3
    assert (engine.step, engine.log) == (0, ["load", "restart_input"])
    draw_range_test(found, title="short")


def test_the_suggestion_is_where_the_loss_falls_fastest_between_the_trimmed_ends() -> None:
    losses = [10.0] * 12 + [9.5, 8.0, 5.0, 4.0, 3.8] + [3.8] * 8
    rates = [float(k) for k in range(len(losses))]
    assert suggest(rates, losses) == 13.0  # from 9.5 to 5.0 around it
    assert suggest(rates[:16], losses[:16]) is None
    falling_at_once = [10.0, 1.0, *[1.0 - 0.01 * k for k in range(28)]]
    assert (suggest([float(k) for k in range(30)], falling_at_once) or 0) >= 10


STEPS = StepScheduleConfig(  # its peak becomes 0.032: all its rates by 0.4
    peak=0.08, warmup_start=0.01, drop_steps=(600, 700), drop_rates=(0.04, 0.0)
)
FOUND = RangeTest([0.004], [1.0], [1.0], 0.004, None, scale=8.0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (FOUND, "Suggestion: 4.00e-03, .*: train.learning_rate.peak=3.20e-02, for a batch of"),
        (FOUND._replace(scale=1.0), "train.learning_rate.peak=4.00e-03; 1 steps"),
        (
            FOUND._replace(schedule=STEPS),
            "peak=3.20e-02 train.learning_rate.warmup_start=4.00e-03 "
            r"train.learning_rate.drop_rates=\[1.60e-02,0.00e\+00\], for a batch of",
        ),
        (FOUND._replace(suggestion=None), "so few steps: raise --num_steps, or lower --end"),
        (
            FOUND._replace(suggestion=None, nonfinite=NonfiniteStep(1, {"loss": np.nan}, [])),
            "the loss is not finite at step 1, loss = nan: lower --start, or look at the records",
        ),
        (
            FOUND._replace(suggestion=None, nonfinite=NonfiniteStep(9, {"loss": np.inf}, [])),
            "the loss is not finite at step 9, loss = inf: lower --end, or raise --num_steps",
        ),
    ],
)
def test_the_summary_is_a_setting_to_paste_or_a_remedy(
    tmp_path: Path, found: RangeTest, words: str
) -> None:
    """A rate of 0.004 for a batch of 8 is one of 0.032 for a reference batch of 64."""
    summary = write_range_test(found, f"{tmp_path}/rate.png", title="lite0")
    assert re.search(words, summary)
    assert (tmp_path / "rate.csv").exists()
    assert write_range_test(found, f"{tmp_path}/rate.png", title="again") == summary


def test_a_table_beside_the_curve_that_is_another_s_is_kept(tmp_path: Path, capsys) -> None:
    """Nobody has named lr.csv: it is refused before the test and after it."""
    table = tmp_path / "lr.csv"
    table.write_text("mine\n")
    with pytest.raises(UserError, match="lr.csv exists and is not a table of rates by tpudet"):
        write_range_test(FOUND, f"{tmp_path}/lr.png", title="lite0")
    parser = ArgumentParser()
    add_range_test_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--output", f"{tmp_path}/lr.png"])
    assert "--output: " in (message := capsys.readouterr().err)
    assert "lr.csv exists and is not a table of rates" in message
    assert table.read_text() == "mine\n"


def test_rates_that_do_not_rise_are_refused() -> None:
    with pytest.raises(UserError, match="start must be below end, got 1 and 0.1"):
        range_test_config(TrainConfig(), start=1.0, end=0.1, num_steps=10)


@pytest.mark.parametrize(
    ("add", "option", "value"),
    [
        (add_training_arguments, "--eval_timeout", "nan"),
        (add_training_arguments, "--eval_timeout", "-1"),
        (add_range_test_arguments, "--output", "no_such_folder/rate.png"),
    ],
)
def test_what_would_fail_after_hours_is_refused_at_once(
    add: Callable[[ArgumentParser], None],
    option: str,
    value: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = ArgumentParser()
    add(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])
    assert f"argument {option}: " in capsys.readouterr().err
