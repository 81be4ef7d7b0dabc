"""Weights of KerasHub's RetinaNet give its outputs and its detections.

KerasHub 0.32.0 ran once, with a file drawn from the names of its groups: `kerashub_detectors.py`
says how, and what it found in two drawn images of 128 by 160 pixels is beside this file. A Python
that has it runs a ResNet-50 on real images, those of coco_tiny in TPUDET_TEST_DATA:

    python -m venv kerashub
    kerashub/bin/pip install keras-hub tensorflow-cpu
    TPUDET_KERASHUB_PYTHON=kerashub/bin/python make test-all
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from tpudet.detection.modeling.foreign_detectors import COCO_LABELS
from tpudet.trainkit.weights.stored_weights import WeightsError

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "kerashub_detectors.py"
SHARED = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
FOREIGN = SimpleNamespace(**runpy.run_path(str(FOLDER / "foreign_detectors.py")))
KERASHUB_PYTHON = os.environ.get("TPUDET_KERASHUB_PYTHON", sys.executable)
CONFIGS = {"first": "kerashub_r50_fpn", "second": "kerashub-v2_r50_fpn"}
NAMES = [name for name in COCO_LABELS if name]


def read_record(kind):
    """What was recorded, and the names of layers by group and shapes by path of KerasHub's file."""
    with np.load(FOLDER / f"kerashub_{kind}.npz") as sample:
        recorded = dict(sample)
    names = dict(zip(recorded["groups"].tolist(), recorded["layers"].tolist(), strict=True))
    shapes = {
        path: tuple(map(int, shape.split()))
        for path, shape in zip(recorded["variables"].tolist(), recorded["shapes"], strict=True)
    }
    return recorded, names, shapes


def write_drawn(kind, path, *, keep=lambda place: True):
    """Writes the file that KerasHub had read, or a part of it, and returns the record."""
    recorded, names, shapes = read_record(kind)
    drawn = SHARED.draw_variables(names, shapes, **SHARED.SMALL[kind])
    part = {place: value for place, value in drawn.items() if keep(place)}
    groups = {place: name for place, name in names.items() if any(map(place.__eq__, around(part)))}
    SHARED.write_file(path, groups, part)
    return recorded


def around(places):
    """The groups around the variables at these places."""
    return {str(parent) for place in places for parent in Path(place).parents}


def build(kind, pretrained, **settings):
    return FOREIGN.build_detector(CONFIGS[kind], pretrained.family, **settings)


def assert_same_outputs(detector, images, logits, deltas, every):
    """Logits within 0.001 and deltas within 0.0003, as KerasHub orders them: x before y."""
    found = detector.task.model(images)
    ours = np.asarray(found.class_logits)[:, ::every]
    np.testing.assert_allclose(ours, logits, rtol=0, atol=1e-3)
    ours = np.asarray(found.box_deltas)[:, ::every, [1, 0, 3, 2]]
    np.testing.assert_allclose(ours, deltas, rtol=0, atol=3e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_small_retinanet_equals_the_record_of_kerashub(kind, tmp_path):
    path = tmp_path / "drawn.weights.h5"
    recorded = write_drawn(kind, path)
    pretrained = FOREIGN.open_file(path)
    assert pretrained.family.name == "KerasHub ResNet"
    detector = build(
        kind,
        pretrained,
        class_names=["a", "b", "c", "d"],
        canvas_size=(128, 160),
        overrides=["model.backbone.depth=18"],
    )
    report = FOREIGN.load(detector, pretrained)
    assert report.missing == report.shape_skipped == report.differences == report.unused == ()
    assert report.notes == ("The file has 4 classes, which are taken in the order of classes.csv.",)
    images = SHARED.SHARED.draw_batch()[0]
    assert_same_outputs(detector, images, recorded["logits"], recorded["deltas"], SHARED.EVERY)
    found = detector.task.predict(FOREIGN.place(images, (128, 160)))
    FOREIGN.assert_same_detections(found, recorded, {label: label for label in range(5)}, least=20)


def test_a_preset_is_a_folder_of_two_files(tmp_path):
    """The backbone's file alone says where the heads are."""
    pyramid = "layers/retina_net_backbone/"
    write_drawn("second", tmp_path / "task.weights.h5", keep=lambda place: pyramid not in place)
    write_drawn("second", tmp_path / "model.weights.h5", keep=lambda place: pyramid in place)
    pretrained = FOREIGN.open_file(tmp_path)
    settings: dict[str, Any] = {"class_names": ["a", "b"], "canvas_size": (128, 160)}
    overrides = ["model.backbone.depth=18"]
    detector = build("second", pretrained, overrides=overrides, **settings)
    report = FOREIGN.load(detector, pretrained)
    assert {path for path, _ in report.missing} == {
        "head/class_predict/kernel",
        "head/class_predict/bias",
    }
    assert report.notes == (
        "The file has 4 classes, which it does not name, and classes.csv has 2: the class layers "
        "start fresh.",
    )
    pretrained = FOREIGN.open_file(tmp_path / "model.weights.h5")
    report = FOREIGN.load(detector, pretrained)
    assert all(path.startswith("head/") for path, _ in report.missing)
    assert "give the folder of the preset as the path" in report.text()
    (tmp_path / "model.weights.h5").unlink()
    with pytest.raises(WeightsError, match="no backbone that is known here"):
        FOREIGN.open_file(tmp_path)


def test_other_settings_than_those_of_kerashub_are_named(tmp_path):
    path = tmp_path / "drawn.weights.h5"
    write_drawn("second", path)
    pretrained = FOREIGN.open_file(path)
    detector = FOREIGN.build_detector(
        "torchvision-v2_r50_fpn",
        pretrained.family,
        class_names=["a"],
        canvas_size=(128, 160),
        overrides=["model.backbone.depth=18"],
    )
    owner = "weights of KerasHub's RetinaNet expect"
    assert FOREIGN.load(detector, pretrained).notes[1:] == (
        f"model.padding is mean; {owner} black.",
        f"model.neck.symmetric_padding is true; {owner} false.",
        f"model.postprocess.class_agnostic is false; {owner} true.",
        f"model.head.norm_epsilon is 1e-05; {owner} 0.001.",
    )


def test_other_resnets_of_kerashub_are_refused(tmp_path):
    """One with three convolutions in its stem has all names of a plain one."""
    recorded, names, shapes = read_record("first")
    stem = next(place for place, name in names.items() if name == "conv1_conv")
    names[f"{stem}_50"] = "conv2_conv"
    shapes[f"{stem}_50/vars/0"] = (3, 3, 64, 64)
    drawn = SHARED.draw_variables(names, shapes, **SHARED.SMALL["first"])
    SHARED.write_file(tmp_path / "drawn.weights.h5", names, drawn)
    pretrained = FOREIGN.open_file(tmp_path / "drawn.weights.h5")
    overrides = ["model.backbone.depth=18"]
    detector = build(
        "first", pretrained, class_names=["a"], canvas_size=(128, 160), overrides=overrides
    )
    with pytest.raises(WeightsError, match="another depth or variant"):
        FOREIGN.load(detector, pretrained)


@pytest.fixture(scope="module")
def kerashub_python():
    done = subprocess.run([KERASHUB_PYTHON, "-c", "import keras_hub"], capture_output=True)
    if done.returncode:
        pytest.skip("TPUDET_KERASHUB_PYTHON names no Python with keras-hub")
    return KERASHUB_PYTHON


def real_images(data_dir):
    """Three images of coco_tiny, stretched to 256 by 320 pixels."""
    images = []
    for path in sorted((data_dir / "coco_tiny/val2017").glob("*.jpg"))[:3]:
        stored: Any = cv2.imread(str(path))
        resized = cv2.resize(stored, (320, 256), interpolation=cv2.INTER_AREA)
        images.append(cv2.cvtColor(resized, cv2.COLOR_BGR2RGB))
    return np.stack(images)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_retinanet_finds_what_kerashub_finds(kind, kerashub_python, data_dir, tmp_path):
    """Of the preset that KerasHub writes; its other files have the same numbers."""
    images = real_images(data_dir)
    absent = [label for label, name in enumerate(COCO_LABELS) if not name]
    np.savez(tmp_path / "inputs.npz", images=images, absent=absent)
    command = [kerashub_python, SCRIPT, "detections", kind, tmp_path / "inputs.npz", tmp_path]
    subprocess.run(list(map(str, command)), check=True)
    with np.load(tmp_path / "expected.npz") as expected:
        expected = dict(expected)
    pretrained = FOREIGN.open_file(tmp_path / "preset")
    detector = build(
        kind,
        pretrained,
        class_names=NAMES,
        canvas_size=(256, 320),
        overrides=["model.postprocess.max_detections=1000"],
    )
    report = FOREIGN.load(detector, pretrained)
    assert report.missing == report.shape_skipped == report.differences == report.unused == ()
    assert "80 of 80 classes have the names of COCO's" in report.text()
    labels = [label for label, name in enumerate(COCO_LABELS) if name]
    logits = expected["logits"][..., labels]
    assert_same_outputs(detector, images, logits, expected["deltas"], 1)
    found = detector.task.predict(FOREIGN.place(images, (256, 320)))
    ours = {label: number + 1 for number, label in enumerate(labels)}
    FOREIGN.assert_same_detections(found, expected, ours, least=10)

    preset = pretrained.stored.tensors
    for name in ("whole.weights.h5", "whole.keras"):
        stored = FOREIGN.open_file(tmp_path / name).stored.tensors
        assert len(stored) == len(preset)
        for place, value in stored.items():
            np.testing.assert_array_equal(value, preset[place.removeprefix("retina_net_backbone/")])
