"""The exit codes of `tpudet check`, and what it says of a storage."""

from pathlib import Path

import pytest

from tpudet.detection.commands import check
from tpudet.detection.inspection import installation
from tpudet.trainkit import backend_arguments
from tpudet.trainkit.backend_arguments import jax_start_error


@pytest.fixture(autouse=True)
def _jax_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_jax_devices", lambda: ["CPU"])


def test_an_installation_that_can_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--storage", str(tmp_path)]) == 0
    *facts, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("tensorflow sees") for line in map(str.lower, facts))
    assert last == f"{tmp_path}: can list (0 names), write, read and remove files"
    assert not list(tmp_path.iterdir())


def test_a_library_that_training_needs_and_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> list[str]:
        raise ImportError("no AVX")

    monkeypatch.setattr(installation, "_tensorflow_devices", fail)
    assert check.main([]) == 1
    assert "no AVX" in capsys.readouterr().out


def test_a_tpu_that_is_not_seen_or_not_free_prevents_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_chips() -> bool:
        monkeypatch.setattr(backend_arguments, "_sees_tpu", lambda: False)
        return backend_arguments.find_tpu()

    def find_busy() -> bool:
        raise jax_start_error(RuntimeError("Unable to initialize backend 'tpu': in use by pid 7"))

    monkeypatch.undo()  # of the fixture
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("TPU_NAME", "det-1")
    for find, message in ((find_chips, "JAX sees no TPU: libtpu"), (find_busy, "in use by pid 7")):
        monkeypatch.setattr(installation, "find_tpu", find)
        assert check.main([]) == 1
        *facts, last = capsys.readouterr().out.splitlines()
        assert any(line.startswith("JAX sees") and message in line for line in facts)
        assert last == "Training cannot run: JAX sees."


def test_the_devices_of_a_pod_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wait() -> list[str]:
        raise AssertionError("JAX was started")

    monkeypatch.setattr(installation, "has_tpu_driver", lambda: True)
    monkeypatch.setattr(installation, "_jax_devices", wait)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t0,t1,t2,t3")
    assert check.main([]) == 0
    printed = capsys.readouterr().out
    assert "not looked up: only `tpudet train` on all 4 hosts of the pod sees them" in printed


def test_a_storage_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert check.main(["--storage", f"{tmp_path}/file"]) == 2
    assert f"{tmp_path}/file cannot be made" in capsys.readouterr().err
