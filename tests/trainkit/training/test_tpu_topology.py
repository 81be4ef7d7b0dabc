"""The TPU compiler on small tasks: what fits, what does not, and the layer that no TPU computes."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tpudet.cli import main
from tpudet.trainkit.training import tpu_plan
from tpudet.trainkit.training.tpu_compiler import compiler_environment
from tpudet.trainkit.training.tpu_machines import GIB, find_machine

needs_libtpu = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="libtpu is not importable: see `tpudet plan --help`"
)
MACHINE = find_machine("v5e-1")
SCRIPT = Path(__file__).with_name("tpu_compiles.py")


@pytest.mark.slow
@needs_libtpu
def test_small_tasks_compile_or_say_why_not() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT],
        env=compiler_environment(MACHINE),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    fits, too_large, unsupported, predicts = map(json.loads, done.stdout.splitlines())
    step = tpu_plan.CompiledStep(**fits["step"])
    # 8 x 30 x 30 places, a kernel of 3 x 3 x 3 x 8, two operations each: forward, and again for
    # the gradient of the kernel; none for that of the images.
    assert step.flops == pytest.approx(2 * 2 * 8 * 30 * 30 * 27 * 8, rel=0.1)
    assert 0 < step.memory_bytes < 0.01 * GIB
    # At least the images are read and the kernel is written; all of it fits into the core.
    assert 8 * 32 * 32 * 3 < step.moved_bytes < step.memory_bytes
    assert 1e3 < sum(step.cycles.values()) < 1e6  # 1 ms is 1.5 million
    assert tpu_plan.exit_code([step], MACHINE) == 0

    failed = tpu_plan.read_failure(**too_large["step"])
    # Weights, momentum and averages of 8 x 2^28 and their biases are 27 GiB; outputs and the
    # gradient 16 GiB.
    assert (failed.kind, failed.needed_bytes) == ("memory", 43 * GIB)
    assert "27.25 GiB more than there are" in tpu_plan.describe(failed, MACHINE, 1)

    failed = tpu_plan.read_failure(**unsupported["step"])
    assert (failed.kind, failed.layer) == ("unsupported", "net/spectrum")
    assert "primitive 'eig' not found for platform tpu" in failed.message
    assert predicts["event"] == "compiled"
    assert predicts["step"]["flops"] < step.flops


@pytest.mark.slow
@needs_libtpu
def test_a_shipped_experiment_is_planned(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "quickstart", "--tpu", "v5e-1", "--steps", "train"]
    small = ["data.canvas_size=[32,32]", "model.head.num_convs=1", "train.batch_size=1"]
    words += [word for setting in small for word in ("--set", setting)]
    assert main([*words, "--json", f"{tmp_path}/plan.json"]) == 0
    output = capfd.readouterr()
    assert "quickstart on v5e-1: 1 chip(s), 1 core(s), 1 device(s)" in output.out
    assert "bound by memory traffic" in output.out
    assert re.search(r"XLA's estimate +\d+\.\d ms, \d+ images/s: .*backbone \d+ %", output.out)
    assert "... compiling the train step" in output.err
    (step,) = json.loads((tmp_path / "plan.json").read_text())
    assert step["flops"] > 1e8


def test_the_prediction_that_is_planned_leaves_each_row_on_its_device() -> None:
    """As evaluation does, which gathers no outputs on all devices."""
    jax = pytest.importorskip("jax")
    from tpudet.trainkit.training.jax_devices import JaxDevices
    from tpudet.trainkit.training.tpu_topology import lower_prediction

    devices = JaxDevices(jax.devices("cpu"))
    task: Any = SimpleNamespace(
        model=SimpleNamespace(variables=[]), predict=lambda batch: 2.0 * batch
    )
    traced = lower_prediction(task, devices, np.zeros((4, 2), np.float32))
    assert traced.out_info.sharding == devices.split


@pytest.mark.parametrize(
    ("setting", "parts"), [("batch_size=6", ""), ("accumulate_steps=3", ", times the 3 accumulate")]
)
def test_a_batch_that_the_devices_do_not_divide_is_wrong_usage(
    setting: str, parts: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--set", "train.batch_size=64", "--set", f"train.{setting}"]
    assert main(["plan", "quickstart", "--tpu", "v5e-8", *words]) == 2
    assert f"it must be a multiple of the 8 device(s){parts}" in capfd.readouterr().err


def test_wrong_usage_and_a_missing_compiler_have_exit_codes_of_their_own(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", "quickstart", "--tpu", "v9-8"]) == 2
    assert "no TPU named `v9-8`" in capfd.readouterr().err
    from tpudet.trainkit.training import tpu_compiler

    monkeypatch.setattr(tpu_compiler, "version", lambda package: "0.0.17")
    assert main(["plan", "quickstart", "--tpu", "v5e-8"]) == 5
    assert "pip install libtpu==0.0.52" in capfd.readouterr().err
    assert "KERAS_BACKEND" not in os.environ or os.environ["KERAS_BACKEND"] != "jax"
