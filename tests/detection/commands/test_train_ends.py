"""tpudet train told to end before its first step and after its last one: exit code 75."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet.trainkit import experiment_commands


def test_a_signal_while_the_training_is_built_exits_with_75(
    sample_part: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tpudet", "train", "quickstart", "--model_dir", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--set", f"data.directory={sample_part}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout
            assert "VERSION quickstart: " in process.stdout.readline()  # imports come next
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 75, errors
    assert "SIGTERM: ending with exit code 75" in errors


def test_a_signal_while_the_best_checkpoint_is_exported_exits_with_75(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_to_end(command: object, environment: object) -> int:
        raise SystemExit(128 + signal.SIGTERM)

    monkeypatch.setattr(experiment_commands, "run_child", told_to_end)
    arguments = argparse.Namespace(model_dir=str(tmp_path), export=str(tmp_path / "final"))
    assert experiment_commands._export(arguments) == 75
