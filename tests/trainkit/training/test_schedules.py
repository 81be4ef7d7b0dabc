"""Learning rates against numbers worked out by hand."""

import numpy as np
import pytest
import tensorflow as tf

from trainkit.training.schedules import cosine, stepwise


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
