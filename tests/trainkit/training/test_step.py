"""The shared arithmetic of a step against numbers worked out by hand, on both backends."""

import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from tpudet.trainkit.training import step


def tensor(values: Any, dtype: str = "float32") -> Any:
    return ops.convert_to_tensor(np.asarray(values, dtype))


def test_half_squared_norm_by_hand() -> None:
    assert float(step.half_squared_norm(tensor([[3.0, 4.0], [0.0, 1.0]]))) == 13.0


def test_losses_become_float32_by_hand() -> None:
    losses = step.check_losses({"loss_box": tensor(0.5, "float16"), "loss": tensor(1.5)})
    assert list(losses) == ["loss_box", "loss"]
    assert {keras.backend.standardize_dtype(value.dtype) for value in losses.values()} == {
        "float32"
    }
    assert [float(value) for value in losses.values()] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ({"loss_box": tensor(1.0)}, r"are \['loss_box'\]; there must be a 'loss'.*not: none"),
        ({"loss": tensor(1.0), "loss_box": tensor([1.0, 2.0])}, r"not: {'loss_box': \(2,\)}"),
    ],
)
def test_losses_that_do_not_fit_are_named(losses: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        step.check_losses(losses)


def test_the_replicas_shares_of_the_l2_term_add_up_by_hand() -> None:
    """0.1 * (3^2 + 4^2 + 2^2) / 2 = 1.45, in two shares."""
    losses = {"loss_box": tensor(0.5), "loss": tensor(1.0)}
    decayed = [tensor([[3.0], [4.0]]), tensor([2.0])]
    with_l2 = step.add_l2(losses, decayed, weight_decay=0.1, num_replicas=2)
    assert {name: round(float(value), 6) for name, value in with_l2.items()} == {
        "loss_box": 0.5,
        "loss": 1.725,
        "l2": 0.725,
    }
    assert losses.keys() == {"loss_box", "loss"}
    ones = step.add_l2(
        losses, decayed, weight_decay=0.1, num_replicas=1, half_squared_norm=lambda _: tensor(1.0)
    )
    assert float(ones["l2"]) == pytest.approx(0.2)


def test_without_decay_there_is_no_l2_term_by_hand() -> None:
    losses = {"loss": tensor(1.0)}
    assert step.add_l2(losses, [tensor([1.0])], weight_decay=0.0, num_replicas=1) == losses
    assert step.add_l2(losses, [], weight_decay=0.1, num_replicas=1) == losses


def test_variables_without_a_gradient_are_all_named() -> None:
    gradients = [tensor([1.0]), tensor([2.0])]
    assert step.check_gradients(["a/kernel", "b/kernel"], gradients) == gradients
    with pytest.raises(ValueError, match=r"does not depend on b/kernel, c/bias: freeze"):
        step.check_gradients(["a/kernel", "b/kernel", "c/bias"], [gradients[0], None, None])


def test_global_norm_by_hand() -> None:
    """3, 4 and 12: 13."""
    assert float(step.global_norm([tensor([[3.0, 4.0]]), tensor([0.0, 12.0])])) == 13.0


@pytest.mark.parametrize(
    ("norm", "clip_norm", "factor"),
    [
        (13.0, None, 1.0),
        (13.0, 6.5, 0.5),
        (13.0, 13.0, 1.0),
        (13.0, 20.0, 1.0),
        (0.0, 1.0, 1.0),
        (np.inf, 6.5, np.nan),
        (np.inf, None, np.nan),
        (np.nan, 6.5, np.nan),
    ],
)
def test_clip_factor_by_hand(norm: float, clip_norm: float | None, factor: float) -> None:
    np.testing.assert_equal(float(step.clip_factor(tensor(norm), clip_norm)), factor)


@pytest.mark.parametrize(
    ("losses", "norm", "scale", "expected"),
    [
        ([1.0, 2.0], 3.0, None, False),
        ([1.0, np.nan], 3.0, None, True),
        ([1.0, -np.inf], 3.0, None, True),
        ([1.0, 2.0], np.inf, None, True),
        ([1.0, 2.0], np.inf, 1.0, False),  # the step is skipped and the scale halved
        ([1.0, 2.0], np.nan, 0.5, True),
        ([1.0, 2.0], 3.0, 0.5, False),
        ([np.nan, 2.0], 3.0, 1024.0, True),
    ],
)
def test_has_failed_by_hand(
    losses: list[float], norm: float, scale: float | None, expected: bool
) -> None:
    loss_scale = None if scale is None else tensor(scale)
    assert bool(step.has_failed(tensor(losses), tensor(norm), loss_scale)) == expected


def test_averages_by_hand() -> None:
    """Kept are 0, 1 / 10, and 0.15 where 2 / 11 would be more."""
    average, seen = tensor([5.0]), []
    for number, weight in enumerate([10.0, 20.0, 40.0]):
        kept = step.average_decay(tensor(number, "int64"), 0.15)
        average = step.update_average(average, tensor([weight]), kept)
        seen.append(float(average[0]))
    assert seen == pytest.approx([10.0, 0.1 * 10 + 0.9 * 20, 0.15 * 19 + 0.85 * 40])
    half = step.update_average(tensor([1.0], "float16"), tensor([3.0], "float16"), tensor(0.5))
    assert keras.backend.standardize_dtype(half.dtype) == "float16"
    assert float(half[0]) == 2.0


def test_the_backend_is_that_of_the_environment() -> None:
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]


ON_JAX = {
    test_the_backend_is_that_of_the_environment: 1,
    test_half_squared_norm_by_hand: 1,
    test_losses_become_float32_by_hand: 1,
    test_the_replicas_shares_of_the_l2_term_add_up_by_hand: 1,
    test_without_decay_there_is_no_l2_term_by_hand: 1,
    test_global_norm_by_hand: 1,
    test_clip_factor_by_hand: 8,
    test_has_failed_by_hand: 8,
    test_averages_by_hand: 1,
}


def test_jax_gives_the_same() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    names = [f"{__file__}::{test.__name__}" for test in ON_JAX]
    command = [sys.executable, "-m", "pytest", "-q", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.splitlines()[-1].startswith(f"{sum(ON_JAX.values())} passed in ")
