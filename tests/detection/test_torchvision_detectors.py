"""Weights of torchvision's detectors give its detections, losses and gradients.

A Python that has torch and torchvision runs `torchvision_detectors.py`, this one or the one that
TPUDET_TORCH_PYTHON names; the real images are those of coco_tiny in TPUDET_TEST_DATA:

    python -m venv torch
    torch/bin/pip install torch torchvision
    TPUDET_TORCH_PYTHON=torch/bin/python make test-all
"""

import functools
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.modeling.foreign_detectors import COCO_LABELS
from tpudet.detection.types import Batch

SCRIPT = Path(__file__).with_name("torchvision_detectors.py")
SAMPLES = Path(__file__).parent  # torchvision_small_*.npz
SHARED = SimpleNamespace(**runpy.run_path(str(SCRIPT)))
FOREIGN = SimpleNamespace(**runpy.run_path(str(SCRIPT.with_name("foreign_detectors.py"))))
TORCH_PYTHON = os.environ.get("TPUDET_TORCH_PYTHON", sys.executable)
NAMES = [name for name in COCO_LABELS if name]


@pytest.fixture(scope="module")
def torch_python():
    done = subprocess.run([TORCH_PYTHON, "-c", "import torchvision"], capture_output=True)
    if done.returncode:
        pytest.skip("TPUDET_TORCH_PYTHON names no Python with torch and torchvision")
    return TORCH_PYTHON


def run_torchvision(python, what, kind, inputs, folder):
    """The weights file that torchvision writes, and what it says of the inputs."""
    np.savez(folder / "inputs.npz", **inputs)
    command = [python, str(SCRIPT), what, kind, str(folder / "inputs.npz"), str(folder)]
    subprocess.run(command, check=True)
    with np.load(folder / "expected.npz") as expected:
        return folder / "weights.pth", dict(expected)


def gradients_of(task, batch):
    """The losses of a batch, and the gradient of every trainable variable by path."""
    with tf.GradientTape() as tape:
        losses = task.losses(batch)
    variables = task.model.trainable_variables
    values = tape.gradient(losses["loss"], [variable.value for variable in variables])
    return losses, {v.path: np.asarray(g) for v, g in zip(variables, values, strict=True)}


def errors(found, wanted):
    """The largest difference of each gradient, relative to the largest value wanted."""
    return {
        path: float(np.abs(found[path] - values).max() / np.abs(values).max())
        for path, values in wanted.items()
        if values.any()  # not frozen there
    }


def assert_same_losses(losses, expected):
    for ours, theirs in (("loss_class", "classification"), ("loss_box", "bbox_regression")):
        np.testing.assert_allclose(losses[ours], expected[theirs], rtol=1e-4)


def real_images(data_dir):
    """Ten images of coco_tiny whose shorter side has 224 pixels, and the canvas of all of them.

    Level 5 has odd sides, which are halved upwards.
    """
    images = []
    for path in sorted((data_dir / "coco_tiny/val2017").glob("*.jpg"))[:10]:
        stored: Any = cv2.imread(str(path))
        image = cv2.cvtColor(stored, cv2.COLOR_BGR2RGB)
        scale = 224 / min(image.shape[:2])
        size = tuple(round(side * scale) for side in image.shape[1::-1])
        images.append(cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    sides = np.max([image.shape[:2] for image in images], axis=0)
    return images, tuple(int(-(-side // 32) * 32) for side in sides)


# With them a few hundred scores of an image are above the threshold.
ONE_STAGE = {"class_scale": 0.03, "box_scale": 0.02, "class_bias": -5.0}
GROUP_NORMS = {"class_scale": 0.6, "box_scale": 0.3, "class_bias": -5.4}
TWO_STAGES = {"class_scale": 0.2, "box_scale": 0.02, "class_bias": 0.0}
# Its features are larger, and no two boxes overlap by 0.5 but for rounding.
MOBILENET = TWO_STAGES | {"class_scale": 0.05}
LABELS = {label: NAMES.index(name) + 1 for label, name in enumerate(COCO_LABELS) if name}


def check_whole_detector(
    kind, config_name, torch_python, data_dir, folder, *, scales, partly=(), overrides=()
):
    """Loads what torchvision saved, and finds in ten real images what it finds in them."""
    images, canvas_size = real_images(data_dir)
    inputs = {f"image{number:02}": image for number, image in enumerate(images)} | scales
    weights, expected = run_torchvision(torch_python, "detections", kind, inputs, folder)
    pretrained = FOREIGN.open_file(weights)
    names = [*NAMES, *(["widget"] if partly else [])]
    detector = FOREIGN.build_detector(
        config_name,
        pretrained.family,
        class_names=names,
        canvas_size=canvas_size,
        overrides=overrides,
    )
    report = FOREIGN.load(detector, pretrained)
    assert not report.missing
    assert not report.shape_skipped
    assert not report.differences
    assert [path for path, *_ in report.partly_loaded] == list(partly)
    assert all(name.endswith("num_batches_tracked") for name in report.unused)
    assert f"80 of {len(names)} classes have the names of COCO's" in report.text()
    for first in (0, 5):
        found = detector.task.predict(FOREIGN.place(images[first : first + 5], canvas_size))
        FOREIGN.assert_same_detections(found, expected, LABELS, least=10, first=first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config_name", "scales"),
    [
        ("retinanet", "torchvision_r50_fpn", ONE_STAGE),
        ("retinanet_v2", "torchvision-v2_r50_fpn", GROUP_NORMS),
    ],
    ids=["first", "second"],
)
def test_retinanet_finds_what_torchvision_finds(
    kind, config_name, scales, torch_python, data_dir, tmp_path
):
    check_whole_detector(
        kind,
        config_name,
        torch_python,
        data_dir,
        tmp_path,
        scales=scales,
        # Enough for all: torchvision counts those without an area, too.
        overrides=["model.postprocess.max_detections=1000"],
        # A class that is not in the file starts fresh, and is not found.
        partly=["head/class_predict/kernel", "head/class_predict/bias"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["faster", "mask"])
@pytest.mark.parametrize("version", ["", "v2"])
def test_two_stages_find_what_torchvision_finds(kind, version, torch_python, data_dir, tmp_path):
    check_whole_detector(
        "_".join(filter(None, (f"{kind}rcnn", version))),
        "-".join(filter(None, ("torchvision", kind, version))) + "_r50_fpn",
        torch_python,
        data_dir,
        tmp_path,
        scales=TWO_STAGES,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("size", "box_scale"), [("", 0.025), ("320", 0.02)])
def test_mobilenet_finds_what_torchvision_finds(size, box_scale, torch_python, data_dir, tmp_path):
    check_whole_detector(
        "_".join(filter(None, ("mobilenet", size))),
        f"torchvision-mobilenet{size}_faster_fpn",
        torch_python,
        data_dir,
        tmp_path,
        scales=MOBILENET | {"box_scale": box_scale},
    )


def annotated_images(data_dir, size):
    """Four images of coco_tiny stretched to squares, their boxes, and labels of 264."""
    folder = data_dir / "coco_tiny"
    truth = json.loads((folder / "annotations/instances_val2017.json").read_text())
    images, boxes, labels = [], np.zeros((4, 40, 4), np.float32), np.full((4, 40), -1)
    of_image = {entry["id"]: [] for entry in truth["images"]}
    for one in truth["annotations"]:
        of_image[one["image_id"]].append(one)
    wanted = [entry for entry in truth["images"] if 0 < len(of_image[entry["id"]]) <= 40][:4]
    for row, entry in enumerate(wanted):
        image: Any = cv2.imread(str(folder / "val2017" / entry["file_name"]))
        resized = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA)
        images.append(cv2.cvtColor(resized, cv2.COLOR_BGR2RGB))
        for column, one in enumerate(of_image[entry["id"]]):
            x, y, width, height = one["bbox"]
            scale = size / np.array([entry["height"], entry["width"]] * 2)
            boxes[row, column] = np.array([y, x, y + height, x + width]) * scale
            labels[row, column] = one["category_id"]
    return np.stack(images), boxes, labels


@pytest.fixture
def network_in_float64(monkeypatch):
    """Has every variable in float64, norms too, and so all that is computed up to the losses."""
    add_weight = keras.layers.Layer.add_weight

    def add_precise(self, *args, **settings):
        if settings.get("dtype") in (None, "float32"):
            settings["dtype"] = "float64"
        return add_weight(self, *args, **settings)

    monkeypatch.setattr(keras.layers.Layer, "add_weight", add_precise)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_dtype_policy(policy)


@pytest.mark.slow
def test_losses_and_gradients_with_the_settings_of_mlperf(
    network_in_float64, torch_python, data_dir, tmp_path
):
    """Of four images of 800 pixels: each loss to 1e-4, each gradient to 1e-3 of its largest value.

    In float64: float32 rounds so that some units pass a ReLU or do not, which changes gradients of
    torchvision itself by up to 0.9 %.
    """
    side = 800
    images, boxes, labels = annotated_images(data_dir, side)
    inputs = {"images": images, "boxes": boxes, "labels": labels} | ONE_STAGE
    weights, expected = run_torchvision(torch_python, "losses", "mlperf", inputs, tmp_path)
    pretrained = FOREIGN.open_file(weights)
    detector = FOREIGN.build_detector(
        "mlperf_resnext50_fpn_800",
        pretrained.family,
        class_names=[f"class {number}" for number in range(264)],
        canvas_size=(side, side),
    )
    assert not FOREIGN.load(detector, pretrained).missing
    # One image after the other, as there: their losses are averaged.
    batch = FOREIGN.place(images, (side, side))._replace(
        boxes=boxes, classes=(labels + 1).astype(np.int32)
    )
    batch = batch._replace(is_crowd=np.zeros(labels.shape, bool))
    losses, gradients = {}, {}
    for row in range(4):
        one = Batch(*(None if v is None else v[row : row + 1] for v in batch))
        parts = gradients_of(detector.task, one)
        for total, part in zip((losses, gradients), parts, strict=True):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + np.asarray(value) / 4
    assert_same_losses(losses, expected)
    # The gradients are read as weights are, into the variables.
    assert not FOREIGN.load(detector, FOREIGN.open_file(tmp_path / "gradients.pth")).missing
    wanted = {v.path: v.numpy() for v in detector.task.model.trainable_variables}
    found = errors(gradients, wanted)
    assert len(found) > 50
    assert max(found.values()) <= 1e-3, sorted(found.items(), key=lambda item: -item[1])[:5]


def test_a_small_mask_rcnn_equals_the_record_of_torchvision():
    """Detections with masks in two drawn images of 128 by 160 pixels, of the second version."""
    detector, recorded, _ = FOREIGN.build_recorded(
        SAMPLES / "torchvision_small_maskrcnn_v2.npz",
        functools.partial(SHARED.draw_small_state, "small_maskrcnn_v2"),
        "torchvision-mask-v2_r50_fpn",
        [
            "model.rpn.max_proposals=60",
            "model.box_head.num_filters=32",
            "model.box_head.num_units=64",
            "model.mask_head.num_filters=32",
            "model.postprocess.max_detections=20",
        ],
    )
    found = detector.task.predict(FOREIGN.place(SHARED.draw_batch()[0], (128, 160)))
    FOREIGN.assert_same_detections(found, recorded, {label: label for label in range(5)}, least=5)


def test_a_small_faster_rcnn_of_a_mobilenet_equals_the_record_of_torchvision():
    """Detections in two drawn images of 128 by 160 pixels: two levels of 4 by 5 cells."""
    detector, recorded, _ = FOREIGN.build_recorded(
        SAMPLES / "torchvision_small_mobilenet.npz",
        functools.partial(SHARED.draw_small_state, "small_mobilenet"),
        "torchvision-mobilenet_faster_fpn",
        ["model.box_head.num_units=64", "model.postprocess.max_detections=20"],
        backbone=(),
    )
    found = detector.task.predict(FOREIGN.place(SHARED.draw_batch()[0], (128, 160)))
    FOREIGN.assert_same_detections(found, recorded, {label: label for label in range(5)}, least=5)


def test_a_small_retinanet_equals_the_record_of_torchvision(network_in_float64):
    """Detections, losses and gradients of two drawn images of 128 by 160 pixels.

    Gradients in float64 on both sides: torchvision's own in float32 are up to 0.7 % off.
    """
    detector, recorded, shapes = FOREIGN.build_recorded(
        SAMPLES / "torchvision_small_retinanet.npz",
        functools.partial(SHARED.draw_small_state, "small_retinanet"),
        "torchvision_r50_fpn",
        [],
    )
    images, boxes, labels = SHARED.draw_batch()
    batch = FOREIGN.place(images, (128, 160))._replace(
        boxes=boxes, classes=labels.astype(np.int32), is_crowd=np.zeros(labels.shape, bool)
    )
    found = detector.task.predict(batch)
    FOREIGN.assert_same_detections(found, recorded, {label: label for label in range(5)}, least=5)

    losses, gradients = gradients_of(detector.task, batch)
    assert_same_losses(losses, recorded)
    # Each gradient times drawn numbers, which are read as weights are.
    drawn = {name: SHARED.draw_direction(name, shape) for name, shape in shapes.items()}
    FOREIGN.load(detector, FOREIGN.drawn_weights(drawn))
    variables = detector.task.model.trainable_variables
    products = [np.vdot(gradients[v.path], v.numpy()) for v in variables]
    norms = [np.linalg.norm(gradients[v.path]) for v in variables]
    # Sorted: the order of layers differs.
    np.testing.assert_allclose(np.sort(norms), np.sort(recorded["gradient_norms"]), rtol=1e-5)
    assert len(products) == len(recorded["gradient_products"])
    for product in products:
        gaps = np.abs(recorded["gradient_products"] - product)
        assert gaps.min() <= 1e-5 * max(recorded["gradient_norms"][gaps.argmin()], 1e-6)
