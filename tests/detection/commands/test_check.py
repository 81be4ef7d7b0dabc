"""The exit codes of `tpudet check`, and what it says of a storage."""

from pathlib import Path

import pytest

from tpudet.detection.commands import check
from tpudet.detection.inspection import installation


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


def test_a_storage_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert check.main(["--storage", f"{tmp_path}/file"]) == 2
    assert f"{tmp_path}/file cannot be made" in capsys.readouterr().err
