"""In bfloat16 a sum of ones stops at 256: gradients that are sums over pixels or boxes must not."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FILE = Path(__file__).with_name("low_precision_sums.py")
SUMS = SimpleNamespace(**runpy.run_path(str(FILE)))


@pytest.fixture(scope="module")
def on_jax() -> dict[str, float]:
    """The sums as XLA compiles them."""
    done = subprocess.run(
        [sys.executable, FILE],
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("one", SUMS.EXPECTED, ids=lambda one: one.__name__)
def test_on_tensorflow_nothing_is_lost(one) -> None:
    found = SUMS.find_sums([one])[one.__name__]
    assert found == pytest.approx(SUMS.EXPECTED[one], rel=4e-3)  # 8 bits of the result


@pytest.mark.parametrize("one", SUMS.EXPECTED, ids=lambda one: one.__name__)
def test_on_jax_nothing_is_lost(one, on_jax: dict[str, float]) -> None:
    assert on_jax[one.__name__] == pytest.approx(SUMS.EXPECTED[one], rel=4e-3)
