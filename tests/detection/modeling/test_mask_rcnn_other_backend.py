import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf


def run_here(task, batch):
    found = task.predict(batch)._asdict().items()
    results = {f"detections/{name}": value for name, value in found if value is not None}
    variables = task.model.trainable_variables
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    gradients = tape.gradient(losses["loss"], [v.value for v in variables])
    results |= {f"losses/{name}": value for name, value in losses.items()}
    results |= {
        f"gradients/{v.path}": tf.convert_to_tensor(g)
        for v, g in zip(variables, gradients, strict=True)
    }
    results |= {f"moved/{v.path}": v for v in task.model.non_trainable_variables}
    return {name: value.numpy() for name, value in results.items()}


@pytest.mark.slow
def test_jax_under_jit_gives_the_same(small_mask, tmp_path):
    """Losses, gradients of all variables, draws, moving statistics and detections, to 1e-4."""
    weights, here = {}, {}
    for name, settings in small_mask.settings_by_name().items():
        task = small_mask.build_task(**settings)
        small_mask.draw_weights(task)
        weights |= {f"{name}/{v.path}": v.numpy() for v in task.model.variables}
        found = run_here(task, small_mask.make_batch())
        here |= {f"{name}/{key}": value for key, value in found.items()}
    np.savez(tmp_path / "weights.npz", **weights)
    subprocess.run(
        [sys.executable, small_mask.path, tmp_path / "weights.npz", tmp_path / "results.npz"],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles in a third of the time
        },
        check=True,
        timeout=600,
    )
    with np.load(tmp_path / "results.npz") as results:
        there = dict(results)
    assert set(there) == set(here)
    for name, value in there.items():
        # Of the array's largest number, but 1 where that is less.
        scale = max(1.0, np.abs(here[name]).max())
        np.testing.assert_allclose(value, here[name], rtol=1e-3, atol=1e-4 * scale, err_msg=name)
        if "/gradients/" in name and name.endswith("kernel"):
            assert np.abs(here[name]).max() > 1e-4, name
