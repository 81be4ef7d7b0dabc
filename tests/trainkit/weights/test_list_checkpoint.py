"""The listing: names, shapes, types, norms and totals that a person can check."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.commands.list_checkpoint import main
from tpudet.trainkit.weights.list_checkpoint import format_listing

SAMPLES = Path(__file__).parent / "samples"


def test_the_table_of_three_tensors() -> None:
    tensors = {
        "conv/kernel": np.array([[3, 0], [0, 4]], "float32"),
        "half": np.full(16, 300, "float16"),  # whose square float16 cannot hold
        "empty": np.zeros((0, 3), "int64"),
    }
    assert format_listing(tensors, list(tensors)).splitlines() == [
        "name         shape   type     norm",
        "conv/kernel  [2, 2]  float32  5",
        "half         [16]    float16  1200",
        "empty        [0, 3]  int64    -",
        "3 tensors, 20 numbers, 0.0 MB",
    ]


def test_the_command_lists_what_matches_the_filter(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SAMPLES / "training_state.pt")
    assert main([path, "--filter", "bias$"]) == 0
    assert main([path, "--without_averages"]) == 0
    averaged, trained = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("fc.bias")
    ]
    assert averaged.split() == ["fc.bias", "[2]", "float32", "10"]  # (6, 8)
    assert trained.split() == ["fc.bias", "[2]", "float32", "5"]  # (3, 4)


def test_a_filter_that_matches_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / "zip_format.pt"), "--filter", "stem"]) == 2
    assert (
        "no name matches --filter 'stem'; the 10 names are like conv.weight"
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit) as stop:
        main([str(SAMPLES / "zip_format.pt"), "--filter", "("])
    assert stop.value.code == 2
    assert "'(' is not a regular expression" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["", "ram://list"])
def test_a_missing_file_is_one_message(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{place}/nowhere/r50.h5"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "there is no such file or checkpoint" in captured.err


def test_damage_found_late_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tf.raw_ops.SaveV2(
        prefix=f"{tmp_path}/ckpt",
        tensor_names=["conv/kernel"],
        shape_and_slices=[""],
        tensors=[tf.constant([1.0, 2.0])],
    )
    (tmp_path / "ckpt.data-00000-of-00001").write_bytes(bytes(8))
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "conv/kernel: " in error
    assert "match: stored" in error
    assert error.count("\n") == 1


def test_the_command_needs_no_torch_and_prints_no_notes_of_tensorflow() -> None:
    file = SAMPLES / "old_format.pth"
    command = [sys.executable, "-m", "tpudet", "list_checkpoint", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].endswith("old_format.pth: PyTorch, old format")
    # 6 + 2 + 3 + 1 + 12 + 4 + 4 + 0 + 2 + 2
    assert done.stdout.splitlines()[-1] == "10 tensors, 36 numbers, 0.0 MB"
    assert "Traceback" not in done.stderr
