"""Every shipped config builds and takes a step, on both backends.

61 models of up to 97 M parameters would take half an hour, so two things are reduced. Models are:
neck and head have 16 filters, one cell and one convolution a tower, on a canvas of 128x128 pixels.
And of configs that differ in numbers alone few stand for all: those in which every kind of
backbone, neck, head, loss, matching and drop-out occurs at least once, with the shallowest backbone
of its kind. `make test-all` adds every backbone at its full depth and every list of what is frozen
on TensorFlow, and the few on JAX, which takes ten times as long to compile.
`benchmarks/step_of_every_config.py` takes the step of all of them unreduced, and
`tools/write_zoo.py` builds all of them unreduced.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/step_of_every_config.py"
STEPS = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
# Of equals the first is taken, and two-stage detectors take twice the time.
ALL = sorted(STEPS.read_experiments(), key=lambda item: item.config.model.kind != "retinanet")
FEW = STEPS.few_with_all(ALL, STEPS.kinds)
AT_FULL_DEPTH = STEPS.few_with_all(ALL, lambda item: (*STEPS.kinds(item), *STEPS.sizes(item)))


def check(step) -> None:
    assert step.faults == []
    assert step.num_gradients >= 70
    parts = [value for name, value in step.losses.items() if name != "loss"]
    assert step.losses["loss"] == pytest.approx(sum(parts), rel=1e-5)
    assert min(step.losses.values()) > 0


@pytest.mark.parametrize("experiment", FEW, ids=lambda experiment: experiment.stem)
def test_a_step_on_tensorflow_is_finite(experiment) -> None:
    check(STEPS.take_step(STEPS.small(experiment, shallow=True).config))


@pytest.mark.slow
@pytest.mark.parametrize("experiment", AT_FULL_DEPTH, ids=lambda experiment: experiment.stem)
def test_a_step_at_full_depth_is_finite(experiment) -> None:
    config = STEPS.small(experiment, shallow=False).config
    assert config.model.backbone == experiment.config.model.backbone
    step = STEPS.take_step(config)
    check(step)
    if experiment.stem == "faster-r50_fpn_1024":
        # Kernels of 53 convolutions less 11 frozen; kernel and bias of 8 in the FPN, 3 in the RPN
        # and 4 in the box head. Its norms are frozen.
        assert step.num_gradients == 53 - 11 + 2 * (8 + 3 + 4)


@pytest.mark.slow  # 150 s; other tests hold each part on JAX to TensorFlow
def test_a_step_on_jax_is_finite() -> None:
    stems = [experiment.stem for experiment in FEW]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--small", *stems],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in half the time
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == stems
    assert all("loss_class" in line and " gradients; " in line for line in lines)
    assert last == f"{len(stems)} of {len(stems)} steps are well on jax"


def test_a_step_that_is_not_finite_is_named() -> None:
    change = ["model.box_loss.kind=huber", "model.box_loss.weight=1e39"]  # beyond float32
    step = STEPS.take_step(STEPS.read_experiments(["quickstart"], change)[0].config)
    assert step.faults[:2] == ["loss_box is inf", "loss is inf"]
    assert any(text.startswith("the gradient of backbone/stem/conv/kernel") for text in step.faults)
