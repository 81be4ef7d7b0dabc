"""The devices that a training would use, looked up by another process."""

import json
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tpudet
from tpudet.trainkit import backend_arguments
from tpudet.trainkit.cpu import available_cores
from tpudet.trainkit.errors import UserError

MODULE = Path(tpudet.__file__).parent / "trainkit/training/find_devices.py"


def python_that(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for Python, which would import TensorFlow for seconds."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="would take the TPU")
def test_what_the_process_looks_up_here(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(MODULE), run_name="__main__")
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"kind", "num_devices", "name", "backend"}
    if found["kind"] == "CPU":
        assert (found["num_devices"], found["backend"]) == (available_cores(), "tensorflow")


def test_the_last_line_of_the_process_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"kind": "TPU", "num_devices": 8, "name": "TPU v5 lite", "backend": "jax"}
    python_that(f"echo a library; echo '{json.dumps(fields)}'", tmp_path, monkeypatch)
    assert tpudet.get_devices()._asdict() == fields
    assert capsys.readouterr().out == "8 TPU (TPU v5 lite): training runs on jax\n"


def test_a_library_that_cannot_be_imported_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that("echo no AVX >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises(UserError, match="the devices cannot be looked up:\nno AVX"):
        tpudet.get_devices()


def test_a_tpu_that_cannot_be_used_is_an_error_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not a CPU on which the training would then refuse to run, and no traceback."""
    monkeypatch.setattr(backend_arguments, "has_tpu_driver", lambda: False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("TPU_NAME", "det-1")
    with pytest.raises(SystemExit, match="^TPU_NAME is set, as on a TPU machine, and JAX sees no"):
        runpy.run_path(str(MODULE), run_name="__main__")


def test_a_host_of_a_pod_does_not_wait_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_that("echo started >&2; exit 1", tmp_path, monkeypatch)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1")
    with pytest.raises(UserError, match="2 hosts of a pod: only `tpudet train` on all sees them"):
        tpudet.get_devices()
