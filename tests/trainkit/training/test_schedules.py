"""Learning rates against numbers worked out by hand."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainkit.training.schedules import (
    Schedule,
    cosine,
    cosine_cyclic,
    exponential,
    one_cycle,
    polynomial,
    scaled,
    stepwise,
)


def test_stepwise_warms_up_then_falls_at_its_boundaries() -> None:
    schedule = stepwise(
        init_learning_rate=0.08,
        levels=[0.008, 0.0008],
        boundaries=[15000, 20000],
        warmup_learning_rate=0.004,
        warmup_steps=400,
    )
    steps = [0, 100, 399, 400, 14999, 15000, 19999, 20000, 10**6]
    rates = np.asarray(schedule(np.array(steps)))
    # The warm-up rises by 0.076 / 400 = 0.00019 a step.
    expected = [0.004, 0.023, 0.07981, 0.08, 0.08, 0.008, 0.008, 0.0008, 0.0008]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


def test_cosine_falls_to_zero_and_stays_there() -> None:
    schedule = cosine(
        init_learning_rate=0.2, total_steps=110, warmup_learning_rate=0.1, warmup_steps=10
    )
    rates = np.asarray(schedule(np.array([0, 5, 10, 35, 60, 110, 150])))
    # A quarter of the fall: 0.2 * (cos(45 degrees) + 1) / 2; the middle: half.
    expected = [0.1, 0.15, 0.2, 0.1 * (1 + 0.5**0.5), 0.1, 0.0, 0.0]
    np.testing.assert_allclose(rates, expected, atol=1e-7)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_no_warmup_starts_at_the_initial_rate(step: int) -> None:
    held = stepwise(init_learning_rate=0.5, warmup_learning_rate=0.1, warmup_steps=0)
    assert float(held(step)) == 0.5
    falling = cosine(init_learning_rate=0.5, total_steps=14)
    assert float(falling(step)) == pytest.approx(0.25 * (1 + np.cos(np.pi * step / 14)))


def test_cosine_that_is_all_warmup() -> None:
    schedule = cosine(init_learning_rate=1.0, total_steps=4, warmup_steps=4)
    rates = [float(schedule(step)) for step in range(6)]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0, 0.0], abs=1e-7)


def test_a_graph_gives_what_eager_gives() -> None:
    schedule = cosine(init_learning_rate=0.3, total_steps=9, warmup_steps=2)
    traced = tf.function(schedule)
    for step in range(10):
        rate = float(traced(tf.constant(step, tf.int64)))
        assert rate == pytest.approx(float(schedule(step)), abs=1e-7)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="boundaries are") as error:
        stepwise(
            init_learning_rate=0.0, levels=[0.1], boundaries=[20000, 10000], warmup_learning_rate=-1
        )
    message = str(error.value)
    assert "init_learning_rate is 0.0" in message
    assert "warmup_learning_rate is -1" in message
    assert "1 levels [0.1] for 2 boundaries [20000, 10000]" in message


@pytest.mark.parametrize("boundaries", [[5, 5], [9, 7], [3, 8]])
def test_boundaries_must_rise_after_the_warmup(boundaries: list[int]) -> None:
    with pytest.raises(ValueError, match="start after the 3 warm-up steps"):
        stepwise(init_learning_rate=1.0, levels=[0.1] * 2, boundaries=boundaries, warmup_steps=3)


def test_cosine_refuses_no_steps() -> None:
    with pytest.raises(ValueError, match="warmup_steps is -2; .*total_steps is 0;"):
        cosine(init_learning_rate=1.0, total_steps=0, warmup_steps=-2)


def test_cosine_cyclic_comes_back_to_its_peak() -> None:
    """200,000 steps of the predecessor: 0 at 10,000, back at 0.08 at 15,000, period 10,000."""
    schedule = cosine_cyclic(
        init_learning_rate=0.08, trough_step=10000, warmup_learning_rate=1e-6, warmup_steps=5000
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
    schedule = one_cycle(init_learning_rate=0.5, total_steps=1000)
    # 0.5 / 25 = 0.02 at first, the peak at 400, at the end 0.02 / 10,000 = 2e-6, then held.
    rates = np.asarray(schedule(np.array([0, 200, 400, 700, 1000, 5000])))
    np.testing.assert_allclose(rates, [0.02, 0.26, 0.5, 0.250001, 2e-6, 2e-6], atol=1e-7)


def test_polynomial_by_hand() -> None:
    schedule = polynomial(
        init_learning_rate=0.9, total_steps=110, end_learning_rate=0.1, power=2.0, warmup_steps=10
    )
    rates = np.asarray(schedule(np.array([0, 5, 10, 60, 85, 110, 200])))
    # 0.1 + 0.8 * (1, 1/2, 1/4, 0) ** 2.
    np.testing.assert_allclose(rates, [0.0, 0.45, 0.9, 0.3, 0.15, 0.1, 0.1], atol=1e-6)


@pytest.mark.parametrize(
    ("staircase", "expected"),
    [(False, [0.0, 0.4, 0.8, 0.8 * 0.5**0.5, 0.4, 0.1]), (True, [0.0, 0.4, 0.8, 0.8, 0.4, 0.1])],
)
def test_exponential_by_hand(staircase: bool, expected: list[float]) -> None:
    schedule = exponential(
        init_learning_rate=0.8, decay_rate=0.5, decay_steps=10, staircase=staircase, warmup_steps=4
    )
    rates = np.asarray(schedule(np.array([0, 2, 4, 9, 14, 34])))
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)


def every_schedule(total_steps: int = 60) -> list[Schedule]:
    warmup: dict[str, Any] = {"warmup_learning_rate": 0.01, "warmup_steps": 10}
    return [
        stepwise(init_learning_rate=0.3, levels=[0.1], boundaries=[40], **warmup),
        cosine(init_learning_rate=0.3, total_steps=total_steps, **warmup),
        cosine_cyclic(init_learning_rate=0.3, trough_step=30, **warmup),
        polynomial(init_learning_rate=0.3, total_steps=total_steps, **warmup),
        exponential(init_learning_rate=0.3, decay_rate=0.9, decay_steps=20, **warmup),
    ]


def test_every_schedule_has_the_same_warmup() -> None:
    for schedule in every_schedule():
        rates = np.asarray(schedule(np.array([0, 5, 10])))
        np.testing.assert_allclose(rates, [0.01, 0.155, 0.3], rtol=1e-6)


def test_a_scaled_schedule_is_the_schedule_times_the_factor() -> None:
    steps = np.arange(80)
    for schedule in every_schedule():
        rates = np.asarray(scaled(schedule, 0.25)(steps))
        np.testing.assert_allclose(rates, np.asarray(schedule(steps)) / 4, rtol=1e-6)


def test_every_schedule_in_a_graph_gives_what_eager_gives() -> None:
    for schedule in [*every_schedule(), one_cycle(init_learning_rate=0.3, total_steps=60)]:
        traced = tf.function(schedule)
        for step in (0, 9, 10, 41, 70):
            rate = float(traced(tf.constant(step, tf.int64)))
            assert rate == pytest.approx(float(schedule(step)), abs=1e-7)


_ON_JAX = """
import keras, numpy, sys
from trainkit.training import schedules
assert keras.backend.backend() == "jax"
import jax
steps = numpy.arange(0, 200, 7)
rates = [
    schedules.cosine_cyclic(init_learning_rate=0.3, trough_step=30, warmup_steps=10),
    schedules.one_cycle(init_learning_rate=0.3, total_steps=150),
    schedules.exponential(init_learning_rate=0.3, decay_rate=0.9, decay_steps=20, warmup_steps=9),
]
numpy.save(sys.argv[1], [jax.jit(rate)(steps) for rate in rates])
"""


def test_jax_under_jit_gives_the_same(tmp_path: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", _ON_JAX, str(tmp_path / "rates.npy")]
    subprocess.run(command, env=environment, check=True, timeout=120)
    steps = np.arange(0, 200, 7)
    here = [
        cosine_cyclic(init_learning_rate=0.3, trough_step=30, warmup_steps=10),
        one_cycle(init_learning_rate=0.3, total_steps=150),
        exponential(init_learning_rate=0.3, decay_rate=0.9, decay_steps=20, warmup_steps=9),
    ]
    expected = [np.asarray(schedule(steps)) for schedule in here]
    np.testing.assert_allclose(np.load(tmp_path / "rates.npy"), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: cosine_cyclic(init_learning_rate=-1.0, trough_step=5, warmup_steps=5),
            ["init_learning_rate is -1", "trough_step is 5; it must come after the 5 warm-up"],
        ),
        (
            lambda: one_cycle(
                init_learning_rate=1, total_steps=0, rise_share=1, start_divisor=0, end_divisor=0.5
            ),
            ["total_steps is 0", "rise_share is 1", "start_divisor is 0", "end_divisor is 0.5"],
        ),
        (
            lambda: polynomial(init_learning_rate=1, total_steps=9, end_learning_rate=-1, power=0),
            ["end_learning_rate is -1", "power is 0"],
        ),
        (
            lambda: exponential(init_learning_rate=1, decay_rate=1.5, decay_steps=0),
            ["decay_rate is 1.5; it must be above 0 and at most 1", "decay_steps is 0"],
        ),
        (lambda: scaled(every_schedule()[0], 0), ["factor is 0; it must be above 0"]),
    ],
)
def test_every_wrong_argument_is_told(make: Callable[[], Schedule], words: list[str]) -> None:
    with pytest.raises(ValueError, match="the learning rate cannot be scheduled") as error:
        make()
    for word in words:
        assert word in str(error.value)
