"""The drawn and the real input of timed steps, and the command that times them."""

import json
from pathlib import Path

import numpy as np
import pytest

from tpudet.classification.build_classifier import build_task
from tpudet.classification.config import ExperimentConfig
from tpudet.classification.profiling.step_times import count_classes, open_input
from tpudet.cli import main
from tpudet.trainkit.config.decode import ConfigError, load_config
from tpudet.trainkit.files.file_kinds import INPUT_TIMES, refuse_other_kind
from tpudet.trainkit.training.devices import choose_tensorflow_devices

SMALL = ("data.image_size=[32,32]", "train.batch_size=2", "model.backbone.depth=18")


def test_drawn_images_are_each_of_one_class_of_the_experiment() -> None:
    config = load_config(ExperimentConfig, "rsna-r50_448", overrides=SMALL)
    drawn = open_input("synthetic", config)
    batch = next(iter(drawn.make_dataset(choose_tensorflow_devices("cpu", 1), 0)))
    assert batch.images.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(np.sort(batch.targets, axis=1)[:, -2:], [[0, 1]] * 2)
    assert drawn.num_classes == batch.targets.shape[1] == 6  # the weights of the loss
    assert count_classes(load_config(ExperimentConfig, "resnet50_224")) == 1000


def test_real_input_without_data_is_said_before_anything_is_built() -> None:
    config = load_config(ExperimentConfig, "resnet18_224", overrides=SMALL)
    with pytest.raises(ConfigError, match=r"data\.directory is empty"):
        open_input("real", config)


def test_class_weights_are_as_many_as_classes() -> None:
    config = load_config(ExperimentConfig, "rsna-r50_448", overrides=SMALL)
    with pytest.raises(ConfigError, match="has 6 weights, and the class list has 3 rows"):
        build_task(config, num_classes=3)


def test_class_weights_are_not_all_0() -> None:
    """Their sum divides the loss."""
    overrides = ["model.loss={kind: sigmoid, class_weights: [0, 0.0]}"]
    with pytest.raises(ConfigError, match=r"class_weights must not all be 0, got \[0"):
        load_config(ExperimentConfig, "resnet18_224", overrides=overrides)


@pytest.mark.slow
def test_the_command_prints_a_row_of_six_columns_for_each_input(
    colors_part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["benchmark_train", "resnet18_224", "--input", "both", "--steps", "1"]
    words += ["--warmup_steps", "1", "--json", f"{tmp_path}/times.json"]
    settings = (*SMALL, f"data.directory={colors_part}", "train.precision=float32")
    assert main([*words, *(f"--set={setting}" for setting in settings)]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header == "| Device | Precision | Network | Batch size | s/batch | images/s |"
    for row, name in zip(rows, ("synthetic", "real"), strict=True):
        assert f"| float32 | resnet18_224, {name} input, tensorflow | 2 | " in row
    for times in json.loads((tmp_path / "times.json").read_text()):
        assert times["images_per_second"] == pytest.approx(2 / times["seconds_per_batch"], rel=1e-2)


@pytest.mark.slow
def test_benchmark_input_compares_the_pipelines(
    colors_part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"--set={setting}" for setting in (*SMALL, f"data.directory={colors_part}")]
    cache = str(tmp_path / "cache")
    command = ["cache_samples", "resnet18_224", "--output", cache, "--variants", "1"]
    assert main([*command, *settings]) == 0
    capsys.readouterr()
    command = ["benchmark_input", "resnet18_224", "--rounds", "1", "--seconds", "0.2"]
    command += ["--steps", "1", "--json", f"{tmp_path}/input.json", f"--set=data.cache={cache}"]
    assert main([*command, *settings]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| basic", "| optimized", "| cached"]
    assert float(rows[0][2]) == 1.0  # times basic
    refuse_other_kind(f"{tmp_path}/input.json", INPUT_TIMES)  # written again, it is replaced
    results = json.loads((tmp_path / "input.json").read_text())
    assert all(0 <= result["training"]["input_wait_share"] <= 1 for result in results)
