"""Class folders, their records, and a trained run, each made once."""

from pathlib import Path

import cv2
import numpy as np
import pytest

COLORS = {"blue": (255, 40, 0), "green": (30, 220, 40), "red": (0, 30, 250)}  # of OpenCV: B G R

# Small enough for a test on two cores, and still every part of the experiment.
TINY = {
    "task": "classification",
    "model.backbone.kind": "resnet",
    "model.backbone.depth": "18",
    "data.image_size": "[32, 32]",
    "train.batch_size": "5",  # no divisor of the 18 images: batches span epochs
    "train.total_steps": "4",
    "train.iterations_per_loop": "2",
    "train.log_every_steps": "1",
    "train.checkpoint_every_steps": "2",
    "train.learning_rate.kind": "cosine",
    "train.learning_rate.peak": "0.01",
    "train.learning_rate.warmup_steps": "0",
    "evaluation.schedule.batch_size": "4",
    "evaluation.schedule.every_steps": "2",
}


def flags(values: dict[str, str]) -> list[str]:
    return [text for key, value in values.items() for text in ("--set", f"{key}={value}")]


def draw(color: tuple[int, int, int], seed: int, height: int = 40, width: int = 48) -> np.ndarray:
    """[h, w, 3] uint8: one colour with noise."""
    noise = np.random.default_rng(seed).integers(-25, 26, (height, width, 3))
    return (np.array(color) + noise).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def class_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three class folders of 10 images each: JPEG, upper-case JPG, PNG and BMP."""
    folder = tmp_path_factory.mktemp("colors")
    endings = [".jpg", ".JPG", ".png", ".bmp"]
    for label, color in COLORS.items():
        (folder / label).mkdir()
        for index in range(10):
            name = f"{label}_{index}{endings[index % 4]}"
            cv2.imwrite(str(folder / label / name), draw(color, index))
    return folder


@pytest.fixture(scope="session")
def colors_part(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The class folders as records: 18 images of train, 6 of val, 6 of test."""
    from tpudet.classification.commands import images_to_tfrecords, split_folders

    folder = tmp_path_factory.mktemp("converted")
    divided = str(folder / "divided")
    fractions = ["--fractions", "train=0.6,val=0.2,test=0.2"]
    assert split_folders.main([str(class_folders), "--output", divided, *fractions]) == 0
    part = folder / "colors"
    command = [divided, "--output", str(part), "--num_shards", "2", "--workers", "1"]
    assert images_to_tfrecords.main(command) == 0
    return part


@pytest.fixture(scope="session")
def trained_run(colors_part: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, evaluated twice."""
    from tpudet.cli import main

    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.yaml").write_text("task: classification\n")
    command = ["train", "--config", str(folder / "tiny.yaml"), "--model_dir", str(folder / "run")]
    values = {**TINY, "data.directory": str(colors_part)}
    assert main([*command, *flags(values)]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def saved_model(trained_run: Path) -> str:
    """The run, exported."""
    from tpudet.cli import main

    root = str(trained_run.parent / "final")
    assert main(["export", "--model_dir", str(trained_run), "--export_root", root]) == 0
    return f"{root}/run-32"
