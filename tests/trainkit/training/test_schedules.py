"""Learning rates against numbers worked out by hand."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.training.schedules import (
    Schedule,
    after_warmup,
    cosine,
    cosine_cyclic,
    exponential,
    one_cycle,
    one_cycle_momentum,
    polynomial,
    range_test,
    scaled,
    stepwise,
)


def every_schedule() -> list[Schedule]:
    return [
        stepwise(peak=0.3, drop_rates=[0.1], drop_steps=[30]),
        cosine(peak=0.3, total_steps=50),
        cosine_cyclic(peak=0.3, trough_step=20),
        one_cycle(peak=0.3, total_steps=60, rise_share=0.4, start_divisor=25.0, end_divisor=1e4),
        polynomial(peak=0.3, total_steps=50, end=0.0, power=1.0),
        exponential(peak=0.3, decay_rate=0.9, decay_steps=20, staircase=False),
        one_cycle_momentum(highest=0.95, lowest=0.85, total_steps=60, rise_share=0.4),
        range_test(start=1e-4, end=0.3, total_steps=60),
    ]


def test_warmup_then_a_stepwise_fall() -> None:
    """The predecessor's: 0.076 / 400 = 0.00019 a step up, then down at 15,000 and 20,000."""
    schedule = after_warmup(
        stepwise(peak=0.08, drop_rates=[0.008, 0.0008], drop_steps=[14600, 19600]),
        warmup_start=0.004,
        peak=0.08,
        warmup_steps=400,
    )
    steps = [0, 100, 399, 400, 14999, 15000, 19999, 20000, 10**6]
    rates = np.asarray(schedule(np.array(steps)))
    expected = [0.004, 0.023, 0.07981, 0.08, 0.08, 0.008, 0.008, 0.0008, 0.0008]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", every_schedule())
def test_a_warmup_delays_the_schedule_and_rises_to_its_peak(schedule: Schedule) -> None:
    warmed_up = after_warmup(schedule, warmup_start=0.01, peak=0.3, warmup_steps=10)
    steps = np.arange(80)
    np.testing.assert_array_equal(warmed_up(steps + 10), schedule(steps))
    rise = np.asarray(warmed_up(np.array([0, 5, 9])))
    np.testing.assert_allclose(rise, [0.01, 0.155, 0.271], rtol=1e-6)


def test_a_drop_at_the_end_of_the_warmup_leaves_the_rise_as_it_is() -> None:
    """0.01 a step up to 0.1, which would be reached at step 10, where 0.02 begins."""
    schedule = stepwise(peak=0.1, drop_rates=[0.02], drop_steps=[0])
    warmed_up = after_warmup(schedule, warmup_start=0.0, peak=0.1, warmup_steps=10)
    np.testing.assert_allclose(warmed_up(np.array([0, 9, 10, 11])), [0.0, 0.09, 0.02, 0.02])
    np.testing.assert_allclose(schedule(np.array([0, 1])), [0.02, 0.02])


@pytest.mark.parametrize("schedule", every_schedule())
def test_no_warmup_is_the_schedule_itself(schedule: Schedule) -> None:
    steps = np.arange(80)
    same = after_warmup(schedule, warmup_start=0.1, peak=0.3, warmup_steps=0)
    np.testing.assert_array_equal(same(steps), schedule(steps))


def test_cosine_falls_to_its_end_and_stays_there() -> None:
    rates = np.asarray(cosine(peak=0.2, total_steps=100)(np.array([0, 25, 50, 100, 140])))
    # A quarter of the fall: 0.2 * (cos(45 degrees) + 1) / 2; the middle: half.
    expected = [0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.0, 0.0]
    np.testing.assert_allclose(rates, expected, atol=1e-7)
    ended = cosine(peak=0.2, total_steps=100, end=0.1)
    np.testing.assert_allclose(ended(np.array([0, 50, 100])), [0.2, 0.15, 0.1], atol=1e-7)


def test_cosine_cyclic_comes_back_to_its_peak() -> None:
    """200,000 steps of the predecessor: 0 at 10,000, back at 0.08 at 15,000, period 10,000."""
    schedule = after_warmup(
        cosine_cyclic(peak=0.08, trough_step=5000),
        warmup_start=1e-6,
        peak=0.08,
        warmup_steps=5000,
    )
    steps = np.array([0, 2500, 5000, 7500, 10000, 12500, 15000, 20000, 195000, 199999, 200000])
    half = 0.04
    expected = [1e-6, (1e-6 + 0.08) / 2, 0.08, half, 0.0, half, 0.08, 0.0, 0.08, 0.0, 0.0]
    np.testing.assert_allclose(np.asarray(schedule(steps)), expected, atol=1e-7)
    # A cosine in float64 that is never folded says the same all the way.
    steps = np.arange(5000, 200000, 37)
    unfolded = 0.04 * (np.cos(np.pi * (steps - 5000) / 5000) + 1)
    np.testing.assert_allclose(np.asarray(schedule(steps)), unfolded, atol=1e-7)


def test_one_cycle_rises_in_a_line_and_falls_in_a_cosine() -> None:
    schedule = one_cycle(
        peak=0.5, total_steps=1000, rise_share=0.4, start_divisor=25.0, end_divisor=1e4
    )
    # 0.5 / 25 = 0.02 at first, the peak at 400, at the end 0.02 / 10,000 = 2e-6, then held.
    rates = np.asarray(schedule(np.array([0, 200, 400, 700, 1000, 5000])))
    np.testing.assert_allclose(rates, [0.02, 0.26, 0.5, 0.250001, 2e-6, 2e-6], atol=1e-7)


def test_polynomial_by_hand() -> None:
    schedule = polynomial(peak=0.9, total_steps=100, end=0.1, power=2.0)
    rates = np.asarray(schedule(np.array([0, 50, 75, 100, 190])))
    # 0.1 + 0.8 * (1, 1/2, 1/4, 0) ** 2.
    np.testing.assert_allclose(rates, [0.9, 0.3, 0.15, 0.1, 0.1], atol=1e-6)


@pytest.mark.parametrize(
    ("staircase", "expected"),
    [(False, [0.8, 0.8 * 0.5**0.5, 0.4, 0.1]), (True, [0.8, 0.8, 0.4, 0.1])],
)
def test_exponential_by_hand(staircase: bool, expected: list[float]) -> None:
    schedule = exponential(peak=0.8, decay_rate=0.5, decay_steps=10, staircase=staircase)
    rates = np.asarray(schedule(np.array([0, 5, 10, 30])))
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


def test_a_scaled_schedule_is_the_schedule_times_the_factor() -> None:
    steps = np.arange(80)
    for schedule in every_schedule():
        rates = np.asarray(scaled(schedule, 0.25)(steps))
        np.testing.assert_allclose(rates, np.asarray(schedule(steps)) / 4, rtol=1e-6)


def test_a_graph_gives_what_eager_gives() -> None:
    for schedule in every_schedule():
        schedule = after_warmup(schedule, warmup_start=0.0, peak=0.3, warmup_steps=10)
        traced = tf.function(schedule)
        for step in (0, 9, 10, 41, 70):
            rate = float(traced(tf.constant(step, tf.int64)))
            assert rate == pytest.approx(float(schedule(step)), abs=1e-7)


_ON_JAX = """
import keras, numpy, sys
from tpudet.trainkit.training import schedules
assert keras.backend.backend() == "jax"
import jax
steps = numpy.arange(0, 200, 7)
rates = [
    schedules.cosine_cyclic(peak=0.3, trough_step=20),
    schedules.one_cycle(
        peak=0.3, total_steps=150, rise_share=0.4, start_divisor=25.0, end_divisor=1e4
    ),
    schedules.after_warmup(
        schedules.exponential(peak=0.3, decay_rate=0.9, decay_steps=20, staircase=False),
        warmup_start=0.0,
        peak=0.3,
        warmup_steps=9,
    ),
]
numpy.save(sys.argv[1], [jax.jit(rate)(steps) for rate in rates])
"""


def test_jax_under_jit_gives_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _ON_JAX, str(tmp_path / "rates.npy")]
    subprocess.run(command, env=environment, check=True, timeout=300)
    steps = np.arange(0, 200, 7)
    decaying = exponential(peak=0.3, decay_rate=0.9, decay_steps=20, staircase=False)
    here = [
        cosine_cyclic(peak=0.3, trough_step=20),
        one_cycle(peak=0.3, total_steps=150, rise_share=0.4, start_divisor=25.0, end_divisor=1e4),
        after_warmup(decaying, warmup_start=0.0, peak=0.3, warmup_steps=9),
    ]
    expected = [np.asarray(schedule(steps)) for schedule in here]
    np.testing.assert_allclose(np.load(tmp_path / "rates.npy"), expected, atol=1e-6)


def test_one_cycles_momentum_falls_while_the_rate_rises() -> None:
    """0.95 to 0.85 over 40 of 100 steps in a line, back along half a cosine over 60."""
    momentum = one_cycle_momentum(highest=0.95, lowest=0.85, total_steps=100, rise_share=0.4)
    found = np.asarray(momentum(np.array([0, 20, 40, 70, 100, 120])))
    np.testing.assert_allclose(found, [0.95, 0.9, 0.85, 0.9, 0.95, 0.95], rtol=1e-6)
