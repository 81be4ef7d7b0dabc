"""Whole classifiers of other libraries, loaded here, give the logits that they give there."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from tpudet.classification.build_classifier import build_task, resolve_auto
from tpudet.classification.config import ExperimentConfig, load_experiment
from tpudet.classification.modeling.classifier import ClassifierTask
from tpudet.classification.modeling.head_names import head_recipe
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.training.start import resolve_config
from tpudet.trainkit.weights.families import NORMALIZATIONS
from tpudet.trainkit.weights.pretrained import load_pretrained

RESNET = ["model.backbone.kind=resnet"]
EFFICIENTNET = ["model.backbone.kind=efficientnet"]
IMAGES = np.random.default_rng(2).integers(0, 256, (2, 64, 96, 3)).astype(np.uint8)
TORCH_PYTHON = os.environ.get("TPUDET_TORCH_PYTHON", sys.executable)


def load_whole(
    path: Path, settings: list[str], folder: Path
) -> tuple[ExperimentConfig, ClassifierTask]:
    """A classifier of eleven classes with every tensor of its head and backbone from a file."""
    (folder / "c.yaml").write_text("task: classification\n")
    experiment = load_experiment(str(folder / "c.yaml"), [*settings, f"train.weights.path={path}"])
    config, pretrained = resolve_config(
        experiment, "no_such_run", loads_weights=True, resolve_auto=resolve_auto
    )
    assert pretrained is not None
    task = build_task(config, num_classes=11)
    report = load_pretrained(
        task.model,
        pretrained,
        normalization=config.model.normalization,
        classes=[ClassEntry(str(k), str(k)) for k in range(11)],
        class_layers=task.class_layers,
        other_parts=head_recipe,
    )
    assert report.missing == report.shape_skipped == report.differences == ()
    return config, task


def assert_same_logits(task: ClassifierTask, expected: np.ndarray) -> None:
    found = np.asarray(task.model(IMAGES, training=False))
    assert expected.std() > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def random_network(build, **settings) -> keras.Model:
    """A network of keras.applications whose statistics are not those of a new one either."""
    keras.utils.set_random_seed(7)
    network = build(weights=None, classes=11, classifier_activation=None, **settings)
    rng = np.random.default_rng(1)
    for variable in network.variables:
        if variable.name == "moving_variance":
            variable.assign(rng.uniform(0.5, 2.0, variable.shape))
        elif variable.name in ("moving_mean", "beta", "bias"):
            variable.assign(rng.normal(0, 0.1, variable.shape))
    return network


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    ("build", "backbone"),
    [
        (keras.applications.ResNet50, [*RESNET, "model.backbone.depth=50"]),
        (keras.applications.EfficientNetB0, [*EFFICIENTNET, "model.backbone.variant=b0"]),
    ],
)
def test_networks_of_keras_applications(build, backbone: list[str], tmp_path: Path) -> None:
    network = random_network(build, input_shape=(64, 96, 3))
    path = tmp_path / "network.weights.h5"
    network.save_weights(path)
    _, task = load_whole(path, backbone, tmp_path)
    if backbone[0] == RESNET[0]:
        inputs = keras.applications.resnet.preprocess_input(IMAGES.astype(np.float32))
    else:  # without ImageNet's weights, which bring mean and deviation, it only divides by 255
        mean, deviation = map(np.array, NORMALIZATIONS["imagenet"])
        inputs = (255.0 * (IMAGES / 255.0 - mean) / deviation).astype(np.float32)
    assert_same_logits(task, np.asarray(network(inputs, training=False)))


@pytest.mark.slow  # 10 s each, and PyTorch
@pytest.mark.parametrize(
    ("library", "name", "backbone"),
    [
        ("timm", "resnet18", [*RESNET, "model.backbone.depth=18"]),
        ("timm", "efficientnet_b0", [*EFFICIENTNET, "model.backbone.variant=b0"]),
        ("timm", "tf_efficientnet_b0", [*EFFICIENTNET, "model.backbone.variant=b0"]),
        ("timm", "tf_efficientnet_lite0", [*EFFICIENTNET, "model.backbone.variant=lite0"]),
        ("torchvision", "resnet50", [*RESNET, "model.backbone.depth=50"]),
        ("torchvision", "efficientnet_b0", [*EFFICIENTNET, "model.backbone.variant=b0"]),
    ],
)
def test_networks_of_pytorch(library: str, name: str, backbone: list[str], tmp_path: Path) -> None:
    command = [TORCH_PYTHON, "-c", f"import torch, safetensors, {library}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"TPUDET_TORCH_PYTHON names no Python with torch, safetensors and {library}")
    normalization = "inception" if "lite" in name else "imagenet"
    mean, deviation = map(np.array, NORMALIZATIONS[normalization])
    np.save(tmp_path / "images.npy", ((IMAGES / 255.0 - mean) / deviation).astype(np.float32))
    script = Path(__file__).with_name("torch_logits.py")
    subprocess.run([TORCH_PYTHON, script, library, name, tmp_path], check=True)
    settings = [*backbone, f"model.normalization={normalization}"]
    # The name of the file tells timm's padding.
    _, task = load_whole(tmp_path / f"{name}.safetensors", settings, tmp_path)
    assert_same_logits(task, np.load(tmp_path / "logits.npy"))
