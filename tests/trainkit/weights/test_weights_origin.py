"""Starting from an earlier run: normalisation, style, epsilon and classes from its folder."""

import dataclasses
import functools
import logging
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.build_detector import build_detector_training, build_task, resolve_auto
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.config import (
    AnchorConfig,
    ATSSConfig,
    HeadConfig,
    RetinaNetConfig,
)
from tpudet.detection.modeling.foreign_parts import find_foreign_parts
from tpudet.detection.modeling.pyramid_config import FPNConfig
from tpudet.detection.modeling.retinanet import RetinaNetTask
from tpudet.trainkit.backbones.config import BatchNormConfig, ResNetConfig
from tpudet.trainkit.class_list import ClassEntry, write_class_list
from tpudet.trainkit.config.decode import to_yaml
from tpudet.trainkit.training.checkpoints import Checkpoints
from tpudet.trainkit.training.config import TrainConfig
from tpudet.trainkit.training.devices import choose_tensorflow_devices
from tpudet.trainkit.training.start import resolve_config
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.families import TPUDET
from tpudet.trainkit.weights.pretrained import load_pretrained
from tpudet.trainkit.weights.report import LoadReport
from tpudet.trainkit.weights.stored_weights import WeightsError

CATS = tuple(ClassEntry(f"/m/{name}", name) for name in ("lion", "lynx", "puma"))
DOGS = (CATS[0], ClassEntry("/m/fox", "fox"), ClassEntry("/m/wolf", "wolf"))
NAME = "model.ckpt-0"


def config(path: str = "", *, exclude: tuple[str, ...] = (), **model_values) -> ExperimentConfig:
    model = RetinaNetConfig(
        backbone=ResNetConfig(depth=18),
        neck=FPNConfig(num_filters=8),
        head=HeadConfig(num_convs=1, num_filters=8),
        **model_values,
    )
    weights = WeightsConfig(path=path, exclude=exclude) if path else None
    return ExperimentConfig(model=model, train=TrainConfig(weights=weights, device="cpu"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that began from weights of another system, with its best checkpoint."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    norm = BatchNormConfig(epsilon=1.5e-5)
    backbone = ResNetConfig(depth=18, style="torch", batch_norm=norm)
    begun = config(normalization="inception")
    begun = dataclasses.replace(begun, model=dataclasses.replace(begun.model, backbone=backbone))
    begun = resolve(begun)
    checkpoints = Checkpoints(str(folder), keep=1)
    checkpoints.prepare()
    state = build_detector_training(
        begun, classes=CATS, train_split=None, devices=choose_tensorflow_devices("cpu")
    ).engine.snapshot()
    for path, array in state.items():
        if path.startswith("head/"):  # away from the initial values, which all runs share
            state[path] = array + 1
    checkpoints.save(state)
    checkpoints.wait()
    (folder / "best").mkdir()
    for file in folder.glob(f"{NAME}.*"):
        shutil.copy(file, folder / "best")
    (folder / "config.yaml").write_text(to_yaml(begun))
    (folder / "classes.csv").write_text(write_class_list(CATS))
    return folder


@functools.cache
def network(model: RetinaNetConfig, num_classes: int) -> keras.Model:
    config = ExperimentConfig(model=model)
    return build_task(config, num_classes=num_classes, canvas_size=(128, 128)).model


def resolve(config: ExperimentConfig) -> ExperimentConfig:
    return resolve_config(config, "no_such_run", loads_weights=False, resolve_auto=resolve_auto)[0]


def resolved_values(path: str) -> tuple[str, str, float | str]:
    model = resolve(config(path)).model
    assert isinstance(model.backbone, ResNetConfig)
    return model.normalization, model.backbone.style, model.backbone.batch_norm.epsilon


def load(path: str, classes: tuple[ClassEntry, ...] = CATS, **values) -> LoadReport:
    resolved, pretrained = resolve_config(
        config(path, **values), "no_such_run", loads_weights=True, resolve_auto=resolve_auto
    )
    assert pretrained is not None
    parts = find_foreign_parts(resolved.model, pretrained.stored.tensors, classes)
    return load_pretrained(
        network(resolved.model, len(classes)),
        pretrained,
        normalization=resolved.model.normalization,
        classes=classes,
        class_layers=RetinaNetTask.class_layers,
        other_parts=parts.recipe,
        settings=resolved.weights_settings,
    )


@pytest.mark.parametrize("scheme", ["", "ram://"])
@pytest.mark.parametrize(
    "place",
    [f"/{NAME}", f"/{NAME}.index", f"/{NAME}.data-00000-of-00001", "", "/", "/best"]
    + [f"/best/{NAME}", f"/best/{NAME}.index"],
)
def test_auto_becomes_what_the_run_had_however_its_checkpoint_is_named(
    scheme: str, place: str, run: Path
) -> None:
    folder = f"{scheme}{run}"
    if scheme:
        tf.io.gfile.makedirs(f"{folder}/best")
        for file in run.rglob("*.*"):
            there = f"{scheme}{file}"
            if file.is_file() and not tf.io.gfile.exists(there):
                tf.io.gfile.copy(str(file), there)
    assert resolved_values(f"{folder}{place}") == ("inception", "torch", 1.5e-5)


@pytest.mark.parametrize(
    ("here", "path"),
    [("", NAME), ("", f"./{NAME}.index"), ("", "best"), ("", "."), ("best", NAME), ("..", "run")],
)
def test_a_path_from_the_current_folder_does_too(
    here: str, path: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run / here)
    assert resolved_values(path) == ("inception", "torch", 1.5e-5)


def test_only_the_runs_own_folder_is_looked_in(run: Path, tmp_path: Path) -> None:
    """A config.yaml of something else above it says nothing, and without one the report says so."""
    copy = tmp_path / "copies" / "run"
    shutil.copytree(run, copy)
    (copy / "config.yaml").rename(tmp_path / "copies" / "config.yaml")
    (tmp_path / "config.yaml").write_text("[")
    path = str(copy / NAME)
    assert resolved_values(path) == ("imagenet", "tensorflow", 1e-4)
    report = load(path)
    assert report.family == TPUDET
    assert report.notes[-1].startswith(f"There is no config.yaml beside {path}, so which ")
    assert report.notes[-1] in report.text(limit=1)


@pytest.mark.parametrize("text", ["[", "services: {web: {image: nginx}}", "model: {backbone: 7}"])
def test_a_config_of_another_kind_is_a_note_with_its_folder(
    text: str, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "config.yaml").write_text(text)
    (copy / "classes.csv").write_text("one\n")
    report = load(str(copy / NAME))
    text = report.text()
    assert f"Note: {copy}/config.yaml was skipped because it cannot be read: " in text
    assert f"Note: {copy}/classes.csv was skipped because it cannot be read: " in text
    assert len(report.loaded) > 100


def test_the_same_classes_keep_the_class_layer(run: Path) -> None:
    report = load(str(run))
    assert report.missing == report.shape_skipped == report.excluded == report.differences == ()
    assert {"head/class_predict/kernel", "head/class_predict/bias"} <= set(report.loaded)


@pytest.mark.parametrize("classes", [DOGS, CATS[:2]])
def test_other_classes_leave_the_class_layer_out_and_the_first_one_is_named(
    classes: tuple[ClassEntry, ...], run: Path
) -> None:
    report = load(str(run / "best"), classes)
    assert report.excluded == ("head/class_predict/kernel", "head/class_predict/bias")
    said = "class 2 was /m/lynx,lynx, now /m/fox,fox"
    if classes is not DOGS:
        said = f"there were 3 classes, now there are {len(classes)}"
    assert f"Note: head/class_predict/ was left out: {said}." in report.text()
    assert report.missing == report.shape_skipped == ()
    assert report.backbone_share == 1.0


def test_the_class_layer_that_is_left_out_keeps_its_initial_values(run: Path) -> None:
    """Through the whole of `build_detector_training`."""
    resolved, pretrained = resolve_config(
        config(str(run)), "no_such_run", loads_weights=True, resolve_auto=resolve_auto
    )
    training = build_detector_training(
        resolved,
        classes=DOGS,
        train_split=None,
        devices=choose_tensorflow_devices("cpu"),
        pretrained=pretrained,
    )
    stored = tf.train.load_checkpoint(str(run / NAME))
    state = training.engine.snapshot()
    for part, more in (("box", 0), ("class", 1)):
        kernel = stored.get_tensor(f"head/{part}_predict/kernel")
        assert kernel.min() > 0.9
        np.testing.assert_allclose(state[f"head/{part}_predict/kernel"], kernel - more, atol=1e-6)


def test_what_the_run_expects_and_the_config_does_not_give_is_a_warning(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        report = load(str(run), normalization="imagenet")
    expected = "model.normalization is imagenet; weights of tpudet expect inception."
    assert report.differences == (expected,)
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert f"{run}: {expected}" in warnings


def test_every_other_setting_of_the_run_that_gives_the_weights_their_meaning_is_one_too(
    run: Path,
) -> None:
    """Nine anchors a location, as there: they fit. What only steers training is not compared."""
    anchors = AnchorConfig(aspect_ratios=(0.5, 1.0, 2.0), size=8.0)
    others = {"anchors": anchors, "padding": "mean", "matching": ATSSConfig()}
    report = load(str(run), **others)
    assert "head/box_predict/kernel" in report.loaded
    padding = "model.padding is mean; weights of tpudet expect black."
    assert report.differences == (
        padding,
        "model.anchors.aspect_ratios is [0.5, 1.0, 2.0]; weights of tpudet expect [1.0, 2.0, 0.5].",
        "model.anchors.size is 8.0; weights of tpudet expect 4.0.",
    )
    assert f"Note: {padding}\n" in report.text()
    # Anchors do not concern a backbone.
    assert load(str(run), exclude=("neck/", "head/"), **others).differences == (padding,)


def test_a_checkpoint_that_is_not_there_is_one_message(run: Path) -> None:
    with pytest.raises(WeightsError, match=f"there is no such file or checkpoint; in {run}"):
        resolved_values(str(run / "model.ckpt-7"))
