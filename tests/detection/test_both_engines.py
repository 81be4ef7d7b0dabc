"""A detector's losses are the same on TensorFlow and on JAX, whatever its neck."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("neck_runs.py")


def run(backend: str, part: str, folder: Path) -> dict[str, list[float]]:
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, SCRIPT, part, folder], env=environment, capture_output=True, text=True
    )
    assert "RESULT" in ended.stdout, ended.stderr[-3000:]
    return json.loads(ended.stdout.split("RESULT", 1)[1])


@pytest.mark.slow
def test_losses_of_twenty_steps_with_every_neck(sample_part: str, tmp_path: Path) -> None:
    """JAX takes over TensorFlow's state every other step, so that each pair of steps is compared.

    Left alone, the engines drift apart by rounding, which a step of this small network multiplies
    by up to ten: equal to 1e-5 for four steps, to about 1 % after twenty.
    """
    expected, found = (run(backend, sample_part, tmp_path) for backend in ("tensorflow", "jax"))
    assert found.keys() == expected.keys() == {"fpn", "nas_fpn", "bifpn", "identity"}
    for name, losses in found.items():
        assert len(set(losses)) == len(losses) == 20
        np.testing.assert_allclose(losses, expected[name], rtol=1e-4, err_msg=name)
