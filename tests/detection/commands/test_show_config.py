"""Mistakes are one message with exit code 2; every config is printed and described."""

from pathlib import Path

import pytest

from tpudet.detection.commands import show_config
from tpudet.detection.config import ExperimentConfig
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.config.find import find_task, list_configs

ROOT = Path(__file__).parents[3]
CONFIGS = [
    path for path in list_configs(ROOT / "configs/yaml") if find_task(str(path)) == "detection"
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_show_config_prints_a_file_that_means_the_same(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_config.main(["--config", path.stem, "--set", "train.seed=7"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    printed = load_config(ExperimentConfig, str(tmp_path / "printed.yaml"))
    assert printed.train.seed == 7
    assert printed == load_config(ExperimentConfig, str(path), overrides=["train.seed=7"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_opens_with_purpose_command_and_what_to_expect(path: Path) -> None:
    header = path.read_text().split("\nmodel:")[0]
    assert all(header.count(f"# {word}:") == 1 for word in ("Purpose", "Command", "Expect"))


def test_every_mistake_of_a_config_is_one_message_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--set", "train.total_step=5", "--set", "data.canvas_size=[100, 128]"]
    assert show_config.main(["--config", "quickstart", *flags]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tpudet show_config: 1 mistake in the configuration:")
    assert "unknown key train.total_step; did you mean `total_steps`?" in message
    assert show_config.main(["--config", "quickstart", *flags[2:]]) == 2
    assert "multiples of 32, the model's stride, got [100]" in capsys.readouterr().err
