import os
import subprocess
import sys
from typing import Any

import numpy as np
import tensorflow as tf


def run_here(task, batch):
    detections = task.predict(batch)
    variables = task.model.trainable_variables
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    gradients = tape.gradient(losses["loss"], [v.value for v in variables])
    results = {f"losses/{name}": value for name, value in losses.items()}
    found = detections._asdict().items()
    results |= {f"detections/{name}": value for name, value in found if value is not None}
    results |= {f"gradients/{v.path}": g for v, g in zip(variables, gradients, strict=True)}
    results |= {f"moved/{v.path}": v for v in task.model.non_trainable_variables}
    return {name: value.numpy() for name, value in results.items()}


def losses_and_gradients_here(small, batch):
    results = {}
    for name, settings in small.LOSSES.items():
        answers = tf.nest.map_structure(tf.constant, small.make_answers())
        with tf.GradientTape() as tape:
            tape.watch(answers)
            found = small.losses_of(answers, batch, **settings)
        gradients: Any = tape.gradient(found["loss"], answers)
        results |= {f"{name}/{key}": value.numpy() for key, value in found.items()}
        results |= {f"{name}/{key}": g.numpy() for key, g in gradients._asdict().items()}
    return results


def necks_here(small):
    results = {}
    for name in small.NECKS:
        neck, weighted_sum = small.make_neck(name)
        trained = neck.trainable_variables
        with tf.GradientTape() as tape:
            total = weighted_sum()
        gradients: Any = tape.gradient(total, [v.value for v in trained])
        results[f"{name}/total"] = total
        results |= {
            f"{name}/gradients/{v.path}": g for v, g in zip(trained, gradients, strict=True)
        }
        results |= {f"{name}/moved/{v.path}": v for v in neck.non_trainable_variables}
    return {name: value.numpy() for name, value in results.items()}


def test_jax_under_jit_gives_the_same(small, tmp_path):
    """Losses, gradients of all variables, moving statistics and detections, to 1e-4.

    So do all kinds of losses and matching, and the choice of candidates by level, on answers of an
    imagined network, and the other necks by themselves.
    """
    task, batch = small.build_task(), small.make_batch()
    small.draw_weights(task)
    weights = {v.path: v.numpy() for v in task.model.variables}
    np.savez(tmp_path / "weights.npz", **weights)
    subprocess.run(
        [sys.executable, small.path, tmp_path / "weights.npz", tmp_path / "results.npz"],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            # Compiles in 9 s instead of 23.
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        },
        check=True,
        timeout=300,
    )
    here = run_here(task, batch) | losses_and_gradients_here(small, batch)
    here |= necks_here(small)
    best = small.best_of_levels(small.make_answers(), batch)
    here |= {name: np.asarray(value) for name, value in best.items()}
    with np.load(tmp_path / "results.npz") as results:
        there = dict(results)
    assert set(there) == set(here)
    assert sum(name.startswith("gradients/") for name in there) == len(
        task.model.trainable_variables
    )
    assert there["detections/num_detections"].min() > 10
    for name, value in there.items():
        # Of the array's largest number, but 1 where that is less.
        scale = max(1.0, np.abs(here[name]).max())
        np.testing.assert_allclose(value, here[name], rtol=1e-4, atol=1e-4 * scale, err_msg=name)
        if name.startswith("gradients/") and name.endswith("kernel"):
            assert np.abs(here[name]).max() > 1e-2, name
        if "/gradients/neck" in name:
            assert np.abs(here[name]).max() > 1e-3, name
        if name.endswith(("class_logits", "box_deltas")):
            assert np.abs(here[name]).max() > 1e-2, name
