"""The engine on JAX does what the engine on TensorFlow does, on one device and on eight."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("engine_runs.py")


def run_on_jax(folder: Path, num_devices: int) -> dict[str, Any]:
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}",
        "JAX_PLATFORMS": "cpu",
    }
    ended = subprocess.run(
        [sys.executable, SCRIPT, folder], env=environment, capture_output=True, text=True
    )
    assert "RESULT" in ended.stdout, ended.stderr[-3000:]
    return json.loads(ended.stdout.split("RESULT", 1)[1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """TensorFlow; JAX on one and on eight devices, which continue TensorFlow's snapshot.

    Five steps of TensorFlow from JAX's.
    """
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("engines")
    here = runpy.run_path(str(SCRIPT))
    found = {"tensorflow": here["main"](folder)}
    (folder / "tensorflow.npz").rename(folder / here["OTHER"])
    found["jax"] = run_on_jax(folder, num_devices=1)
    found["jax_8"] = run_on_jax(folder, num_devices=8)
    (folder / "jax.npz").rename(folder / here["OTHER"])
    found["tensorflow_after_jax"] = {"continued": here["continued_losses"](folder)}
    return found


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_losses_of_twenty_steps_are_those_of_tensorflow(runs: Any, name: str) -> None:
    expected, found = runs["tensorflow"]["losses"], runs[name]["losses"]
    assert len(found) == 20
    for theirs, ours in zip(expected, found, strict=True):
        assert list(theirs) == list(ours) == ["loss_square", "loss", "l2", "gradient_norm"]
        for key, value in theirs.items():
            assert ours[key] == pytest.approx(value, rel=2e-5, abs=1e-6)
    np.testing.assert_allclose(
        runs[name]["learning_rates"], runs["tensorflow"]["learning_rates"], rtol=1e-6
    )
    assert runs[name]["devices"] == (8 if name == "jax_8" else 1)


@pytest.mark.parametrize("name", ["tensorflow", "jax", "jax_8"])
def test_a_run_that_is_resumed_ends_bit_for_bit_as_one_that_was_not_stopped(
    runs: Any, name: str
) -> None:
    assert runs[name]["resumed_is_the_same"]


def test_checkpoints_have_one_form(runs: Any) -> None:
    signature = runs["tensorflow"]["signature"]
    assert runs["jax"]["signature"] == runs["jax_8"]["signature"] == signature
    assert signature["global_step"] == [[], "int64"]
    assert signature["drop/seed/seed_generator_state"] == [[2], "int64"]


@pytest.mark.parametrize("name", ["jax", "jax_8", "tensorflow_after_jax"])
def test_either_engine_continues_the_snapshot_of_the_other(runs: Any, name: str) -> None:
    """Step 7 to 12 of the run that was not stopped."""
    expected = [losses["loss"] for losses in runs["tensorflow"]["losses"][7:12]]
    np.testing.assert_allclose(runs[name]["continued"], expected, rtol=2e-5)


@pytest.mark.parametrize("name", ["tensorflow", "jax", "jax_8"])
def test_a_loss_that_is_not_finite_names_its_step_and_its_records(runs: Any, name: str) -> None:
    """Record 21 is in the third batch of eight."""
    step, losses, records = runs[name]["nonfinite"]
    assert (step, runs[name]["steps_before"]) == (3, 2)
    assert math.isnan(losses["loss_square"])
    assert records == [(1 << 40) + number for number in range(16, 24)]


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_a_stop_before_the_first_step_makes_none(runs: Any, name: str) -> None:
    assert runs[name]["stopped_steps"] == 0


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_averages_are_swapped_in_and_equal_tensorflows(runs: Any, name: str) -> None:
    assert runs[name]["averaged_dense"] == runs[name]["ema_dense"]
    np.testing.assert_allclose(runs[name]["ema_dense"], runs["tensorflow"]["ema_dense"], rtol=1e-4)


def test_what_gathers_a_divided_state_is_compiled_once(runs: Any) -> None:
    """At the first save a program for each shape, [3, 3, 2, 4], [4] and [4, 1]; then none."""
    assert runs["jax_8"]["compiled"] == [3, 0]


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_every_image_is_predicted_once_whatever_the_number_of_devices(runs: Any, name: str) -> None:
    """Eleven records in batches of 4, 4 and 3."""
    assert len(runs[name]["predicted"]) == 11
    np.testing.assert_allclose(
        runs[name]["predicted"], runs["tensorflow"]["predicted"], rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_the_parts_of_a_batch_divide_by_the_sum_over_what_they_themselves_draw(
    runs: Any, name: str
) -> None:
    """Eight parts on one device count 1 to 8 of 36; on eight devices there is one part."""
    assert runs[name]["shares"][0] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["jax", "jax_8"])
def test_a_schedule_of_drops_advances_with_the_steps_and_not_with_their_parts(
    runs: Any, name: str
) -> None:
    """Two steps, of eight parts each on one device."""
    assert runs[name]["shares"][1] == 2
