import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

FILE = Path(__file__).with_name("small_parts.py")
SMALL = SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    """Outputs, gradients and moved statistics of the parts under jit, by part and path."""
    path = tmp_path_factory.mktemp("jax") / "results.npz"
    subprocess.run(
        [sys.executable, FILE, path],
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles faster
        },
        check=True,
        timeout=300,
    )
    with np.load(path) as results:
        return dict(results)


@pytest.mark.parametrize(
    ("name", "trained"),
    [
        ("seresnext", 4 * 3 + 2 * 2),
        ("inverted", 3 * 3 + 2 * 2),
        ("inverted_lite", 3 * 3),
        ("mobile", 3 * 3 + 2 * 2),
        ("symmetric_pooling", 3 * 3),
        ("plain_pooling", 3 * 3),
        ("squares", 1),
    ],
)
def test_jax_under_jit_gives_the_same(name, trained, on_jax):
    """Outputs, gradients of all variables and moved statistics, to 1e-4."""
    part = SMALL.PARTS[name]()
    here: dict[str, Any] = {"inference": part.run(False)}
    with tf.GradientTape() as tape:
        here["total"] = SMALL.weighted_sum(part)
    gradients: Any = tape.gradient(here["total"], [v.value for v in part.trained])
    here |= {f"gradients/{v.path}": g for v, g in zip(part.trained, gradients, strict=True)}
    here |= {f"moved/{v.path}": v for v in part.others}
    start = f"{name}/"
    there = {k.removeprefix(start): v for k, v in on_jax.items() if k.startswith(start)}
    assert set(there) == set(here)
    assert len(part.trained) == trained
    for key, value in there.items():
        ours = here[key].numpy()
        scale = max(1.0, np.abs(ours).max())
        np.testing.assert_allclose(value, ours, rtol=1e-4, atol=1e-4 * scale, err_msg=key)
        assert np.abs(ours).max() > 1e-2, key


def test_every_part_is_compared(on_jax):
    assert {name.partition("/")[0] for name in on_jax} == set(SMALL.PARTS)
