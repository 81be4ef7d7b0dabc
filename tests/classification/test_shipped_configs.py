"""The shipped classifiers: they decode, build, and follow the recipes that they name."""

from pathlib import Path

import numpy as np
import pytest

from tpudet.classification.build_classifier import build_task, resolve_auto
from tpudet.classification.config import ExperimentConfig
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.config.find import find_task, list_configs
from tpudet.trainkit.training.build_optimizer import build_schedule, warmup_warning
from tpudet.trainkit.training.config import LARSConfig

FOLDER = Path(__file__).parents[2] / "configs/yaml"
CONFIGS = [path for path in list_configs(FOLDER) if find_task(str(path)) == "classification"]


def read(version: str) -> ExperimentConfig:
    return load_config(ExperimentConfig, version)


def rates(version: str, steps: list[int]) -> np.ndarray:
    return np.asarray(build_schedule(read(version).train)(np.array(steps)))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_file_is_a_whole_experiment(path: Path) -> None:
    config = read(str(path))
    assert warmup_warning(config.train) == ""
    assert isinstance(resolve_auto(config.model).top_filters, int)
    assert path.parent.name in ("base", "classification")


def test_imagenets_rate_rises_for_five_of_ninety_epochs_and_drops_three_times() -> None:
    """0.1 for 256 images is 0.4 for 1,024; an epoch is 1,251 steps."""
    found = rates("resnet50_224", [0, 6255, 37529, 37530, 75060, 100080])
    np.testing.assert_allclose(found, [0, 0.4, 0.4, 0.04, 0.004, 0.0004], rtol=1e-6)
    assert read("resnet101").train.total_steps == 200_000
    assert read("resnet152").train.total_steps == 250_000
    found = rates("resnet200_224", [16667, 100000, 200000, 266667])
    np.testing.assert_allclose(found, [0.4, 0.04, 0.004, 0.0004], rtol=1e-6)


def test_the_rate_of_a_run_too_short_for_a_warm_up_is_finite() -> None:
    """15 epochs of 2,934 flowers: 5/90 of them are 0 epochs, which tensorflow/tpu divides by."""
    found = rates("flowers_resnet50_224", list(range(42)))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[[0, 10, 11, 26, 37]], [0.4, 0.4, 0.04, 0.004, 0.0004])


def test_lars_rises_to_25_for_16384_images_and_falls_as_a_square() -> None:
    config = read("lars_resnet50_224")
    assert isinstance(config.train.optimizer, LARSConfig)
    middle = (391 + 7037) // 2
    found = rates("lars_resnet50_224", [0, 391, middle, 7037])
    np.testing.assert_allclose(found, [0, 25, 6.25, 0], rtol=1e-3, atol=1e-6)


def test_efficientnets_top_has_its_published_size() -> None:
    """Parameters as keras.applications has them: b0 5,288,548 with statistics 5,330,564."""
    task = build_task(read("effnetb0_224"), num_classes=1000)
    weights = sum(int(np.prod(v.shape)) for v in task.model.trainable_variables)
    assert weights == 5_288_548
    assert resolve_auto(read("effnetb5_456").model).top_filters == 2048
    assert resolve_auto(read("effnetlite0_112").model).top_filters == 1280
