"""JAX continues a classifier that TensorFlow began, and comes to the same weights."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tpudet.cli import main
from tpudet.trainkit.training.checkpoints import read_checkpoint


@pytest.mark.slow
def test_two_steps_on_jax_are_two_steps_on_tensorflow(trained_run: Path, tmp_path: Path) -> None:
    """From step 4 to 6, with statistics, momentum and input position of the checkpoint."""
    command = ["train", "--config", str(trained_run / "config.yaml"), "--mode", "train"]
    command += ["--set", "train.total_steps=6"]
    for name in ("jax", "tensorflow"):
        shutil.copytree(trained_run, tmp_path / name)
    assert main([*command, "--model_dir", str(tmp_path / "tensorflow")]) == 0
    there = [*command, "--model_dir", str(tmp_path / "jax"), "--backend", "jax"]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in a third of the time
    }
    done = subprocess.run(
        [sys.executable, "-m", "tpudet", *there],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = read_checkpoint(str(tmp_path / "tensorflow/model.ckpt-6"))
    found = read_checkpoint(str(tmp_path / "jax/model.ckpt-6"))
    before = read_checkpoint(str(trained_run / "model.ckpt-4"))
    assert found.keys() == expected.keys()
    assert found["records_consumed"] == 30
    for key, value in expected.items():
        scale = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(found[key], value, rtol=0, atol=2e-3 * scale, err_msg=key)
    kernel = "backbone/stem/conv/kernel"
    assert np.abs(expected[kernel] - before[kernel]).max() > 1e-4
