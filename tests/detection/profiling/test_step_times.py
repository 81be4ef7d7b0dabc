"""The inputs of timed steps, and the command on either backend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpudet.detection.config import ExperimentConfig
from tpudet.detection.profiling.step_times import open_input
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.files.file_kinds import STEP_TIMES, refuse_other_kind
from tpudet.trainkit.training.devices import choose_tensorflow_devices

SMALL = ("data.canvas_size=[32,32]", "train.batch_size=2", "model.head.num_convs=1")


def test_drawn_input_has_the_batch_of_the_config() -> None:
    config = load_config(ExperimentConfig, "quickstart", overrides=SMALL)
    drawn = open_input("synthetic", config)
    batch = next(iter(drawn.make_dataset(choose_tensorflow_devices("cpu", 1), 0)))
    assert (drawn.name, drawn.num_classes) == ("synthetic", 80)
    assert batch.images.shape == (2, 32, 32, 3)
    assert int(batch.classes.numpy().max()) <= 80


def test_real_input_without_data_is_said_before_anything_is_built() -> None:
    config = load_config(ExperimentConfig, "quickstart", overrides=SMALL)
    with pytest.raises(ConfigError, match=r"data\.directory is empty"):
        open_input("real", config)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_the_command_prints_a_row_and_writes_the_times(backend: str, tmp_path: Path) -> None:
    words = ["benchmark_train", "quickstart", "--backend", backend, "--steps", "2"]
    words += [word for setting in SMALL for word in ("--set", setting)]
    done = subprocess.run(
        [sys.executable, "-m", "tpudet", *words, "--json", f"{tmp_path}/times.json"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    header, _, row = done.stdout.splitlines()
    assert header == "| Device | Precision | Network | Batch size | s/batch | images/s |"
    assert f"| float32 | quickstart, synthetic input, {backend} | 2 | " in row
    refuse_other_kind(f"{tmp_path}/times.json", STEP_TIMES)  # written again, it is replaced
    (times,) = json.loads((tmp_path / "times.json").read_text())
    assert times["images_per_second"] == pytest.approx(2 / times["seconds_per_batch"], rel=1e-2)
