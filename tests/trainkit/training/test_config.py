"""Values that the `train` section refuses, for every kind of schedule."""

from typing import get_args

import numpy as np
import pytest

from tpudet.classification import config as classification
from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.config.decode import ConfigError, decode, load_config
from tpudet.trainkit.config.idle_keys import describe_idle
from tpudet.trainkit.config.yaml_tree import parse_tree
from tpudet.trainkit.training.build_optimizer import build_schedule
from tpudet.trainkit.training.config import (
    RangeTestScheduleConfig,
    ScheduleConfig,
    StepScheduleConfig,
    TrainConfig,
    WarmedUpScheduleConfig,
)
from tpudet.trainkit.training.run_outlook import describe_learning_rate

KINDS = [
    member.kind for member in get_args(ScheduleConfig) if member is not RangeTestScheduleConfig
]  # those that have a peak
WARMED_UP = [member.kind for member in get_args(WarmedUpScheduleConfig)]
NEEDED = {"cosine_cyclic": ", trough_step: 900"}  # beside the peak


def decoded(text: str) -> TrainConfig:
    return decode(TrainConfig, parse_tree(text, "my.yaml"))


@pytest.mark.parametrize("kind", KINDS)
def test_another_kind_of_schedule_wants_its_own_peak(kind: str) -> None:
    """A changed kind drops what was written for the one before: 1.5e-3 for AdamW, say."""
    path = "r50_fpn_640" if kind == "cosine" else "r18_fpn_320"
    with pytest.raises(ConfigError, match="missing key train.learning_rate.peak"):
        load_config(ExperimentConfig, path, overrides=[f"train.learning_rate.kind={kind}"])


@pytest.mark.parametrize("kind", KINDS)
def test_no_rate_is_above_the_peak_that_is_written(kind: str) -> None:
    """Whatever else a schedule does by default."""
    train = decoded(f"learning_rate: {{kind: {kind}, peak: 1e-4{NEEDED.get(kind, '')}}}\n")
    rates = np.asarray(build_schedule(train)(np.arange(0, train.total_steps, 50)))
    assert rates.max() == pytest.approx(1e-4, rel=1e-3)
    assert rates[0] < rates.max()


@pytest.mark.parametrize("kind", WARMED_UP)
def test_a_warmup_never_falls(kind: str) -> None:
    written = f"kind: {kind}, peak: 0.01{NEEDED.get(kind, '')}"
    level = decoded(f"learning_rate: {{{written}, warmup_start: 0.01}}\n")
    rates = np.asarray(build_schedule(level)(np.array([0, 250, 499])))
    np.testing.assert_allclose(rates, 0.01, rtol=1e-5)
    words = "warmup_start must be at most peak, got 0.02 and 0.01"
    with pytest.raises(ConfigError, match=words):
        decoded(f"learning_rate: {{{written}, warmup_start: 0.02}}\n")


def test_the_default_is_the_step_schedule_of_64_images() -> None:
    rates = np.asarray(build_schedule(TrainConfig())(np.array([0, 500, 14999, 15000, 20000])))
    np.testing.assert_allclose(rates, [0.0067, 0.08, 0.08, 0.008, 0.0008], rtol=1e-6)


@pytest.mark.parametrize("warmup_steps", [0, 500])
def test_a_drop_may_come_where_the_warmup_ends_and_not_before(warmup_steps: int) -> None:
    """The rise heads for the peak, as if it were reached; the drop replaces it."""
    written = f"kind: step, peak: 0.1, drop_rates: [0.01], warmup_steps: {warmup_steps}"
    train = decoded(f"learning_rate: {{{written}, drop_steps: [{warmup_steps}]}}\n")
    schedule = build_schedule(train)
    if warmup_steps:
        assert float(schedule(warmup_steps - 1)) == pytest.approx(0.1 * 499 / 500)
    assert float(schedule(warmup_steps)) == pytest.approx(0.01)
    words = f"must not come before the end of the {warmup_steps} warmup_steps"
    with pytest.raises(ConfigError, match=words):
        decoded(f"learning_rate: {{{written}, drop_steps: [{warmup_steps - 1}]}}\n")


@pytest.mark.parametrize("peak", [0.08, 0.002])
def test_drops_follow_the_peak(peak: float) -> None:
    """A tenth of the rate before at each step: of 0.002 it is 0.0002, not the 0.008 of 0.08."""
    overrides = [f"train.learning_rate.peak={peak}", "train.learning_rate.warmup_start=0"]
    train = load_config(ExperimentConfig, "r50_fpn_640", overrides=overrides).train
    rates = np.asarray(build_schedule(train)(np.arange(train.total_steps)))
    np.testing.assert_allclose(rates[[14999, 15000, 20000]], [peak, peak / 10, peak / 100], 1e-6)
    assert rates.max() == pytest.approx(peak)
    assert describe_learning_rate(train) == f"Learning rate: step, at most {peak:g}"


@pytest.mark.parametrize("rates", ["[0.008, 0.0008]", "[0.001, 0.0015]"])
def test_a_drop_that_rises_is_refused_and_one_that_stays_is_not(rates: str) -> None:
    text = "learning_rate: {kind: step, peak: 0.002, drop_steps: [600, 700], drop_rates: %s}\n"
    words = r"my.yaml:1: .*drop_rates must fall from the peak of 0.002 on, got \[0.00"
    with pytest.raises(ConfigError, match=words):
        decoded(text % rates)
    rate = decoded(text % "[0.002, 0.0]").learning_rate
    assert isinstance(rate, StepScheduleConfig)
    assert rate.rates_after_drops == (0.002, 0.0)


def test_a_step_schedule_without_drops_is_constant() -> None:
    train = TrainConfig(learning_rate=StepScheduleConfig(peak=0.3, warmup_steps=0))
    np.testing.assert_allclose(build_schedule(train)(np.array([0, 10**6])), 0.3, rtol=1e-6)


def test_the_start_of_a_warmup_of_no_steps_is_idle() -> None:
    text = "learning_rate: {kind: cosine, peak: 0.1, warmup_steps: %d, warmup_start: 0.01}\n"
    idle = [describe_idle(decoded(text % steps).idle_keys()) for steps in (0, 1)]
    assert idle == ["train.learning_rate.warmup_start: there is no warm-up", ""]


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_no_generator_takes_is_refused_where_it_is_written(seed: int) -> None:
    with pytest.raises(ConfigError, match=rf"my.yaml:1: .*seed must be in \[0, .*got {seed}"):
        decoded(f"seed: {seed}\n")
    assert decoded(f"seed: {2**31 - 1}\n").seed == 2**31 - 1


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            "kind: step, peak: 0.0, drop_rates: [0.1], drop_steps: [20000, 10000]",
            ["peak must be above 0, got 0.0", "the same length, got 2, 1", "must increase, got"],
        ),
        (
            "kind: step, peak: 1.0, drop_rates: [-1.0, 0.0], drop_steps: [-1, 5], warmup_steps: -1",
            ["drop_rates must be 0 or more, got [-1.0, 0.0]", "warmup_steps must be 0 or more"],
        ),
        ("kind: step, peak: 1.0, drop_rates: [1.0, 0.0], drop_steps: [600, 600]", ["[600, 600]"]),
        ("kind: step, peak: .inf", ["peak must be a number, got inf"]),
        ("kind: step, peak: .nan", ["peak must be a number, got nan"]),
        (
            "kind: cosine_cyclic, peak: -1.0, trough_step: 0",
            ["peak must be", "trough_step must be"],
        ),
        (
            "kind: one_cycle, peak: 1.0, rise_share: 1.0, start_divisor: 0.0, end_divisor: 0.5",
            [
                "rise_share must be in (0, 1), got 1.0",
                "start_divisor must be 1 or more, got 0.0",
                "end_divisor must be 1 or more, got 0.5",
            ],
        ),
        (
            "kind: polynomial, peak: 1.0, end: -1.0, power: 0.0",
            ["end must be 0 or more, got -1.0", "power must be above 0, got 0.0"],
        ),
        (
            "kind: polynomial, peak: 0.001, end: 0.01",
            ["end must be at most peak, got 0.01 and 0.001"],
        ),
        (
            "kind: one_cycle, peak: 1.0, momentum_range: [0.85, 0.95]",
            ["momentum_range is [at the ends, at the peak]", "got [0.85, 0.95]; swap the two"],
        ),
        (
            "kind: exponential, peak: 1.0, decay_rate: 1.5, decay_steps: 0",
            ["decay_rate must be in (0, 1], got 1.5", "decay_steps must be above 0, got 0"],
        ),
        (
            "kind: cosine, peak: 0.0, warmup_start: -1.0, warmup_steps: -2",
            ["warmup_start must be 0 or more", "peak must be above 0", "warmup_steps must be 0"],
        ),
    ],
)
def test_every_wrong_value_of_a_schedule_is_told(written: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        decoded(f"learning_rate: {{{written}}}\n")
    for word in words:
        assert word in str(error.value)


def test_every_wrong_number_of_a_run_is_told() -> None:
    text = "total_steps: 0\nreference_batch_size: 0\ngradient_clip_norm: 0.0\nema_decay: 1.0\n"
    with pytest.raises(ConfigError) as error:
        decoded(text)
    for word in (
        "total_steps must be above 0, got 0",
        "reference_batch_size must be above 0, got 0",
        "gradient_clip_norm must be above 0, got 0.0",
        "ema_decay must be in (0, 1), got 1.0",
    ):
        assert word in str(error.value)
    with pytest.raises(ConfigError, match="weight_decay must be 0 or more, got -1.0"):
        decoded("optimizer: {kind: momentum, weight_decay: -1.0}\n")


def test_a_target_is_a_metric_of_the_task() -> None:
    train = TrainConfig(stop_at={"top1": 0.9, "AP50": 0.5})
    with pytest.raises(ValueError, match=r"train.stop_at has no metric AP50; known are top1, top5"):
        classification.ExperimentConfig(task="classification", train=train)
    with pytest.raises(ValueError, match=r"train.stop_at has no metric top1; known are AP, "):
        ExperimentConfig(train=train)
