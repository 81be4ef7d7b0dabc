"""Detectors built from shipped configs with weights of other libraries, and what they must find.

Tests run this file by `runpy`, to share its functions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.build_detector import build_task, resolve_auto
from tpudet.detection.config import ExperimentConfig
from tpudet.detection.modeling.foreign_parts import find_foreign_parts
from tpudet.detection.types import Batch
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.config.decode import load_config
from tpudet.trainkit.weights.config import WeightsConfig
from tpudet.trainkit.weights.pretrained import Pretrained, load_pretrained, open_pretrained
from tpudet.trainkit.weights.recognize import recognize
from tpudet.trainkit.weights.stored_weights import StoredWeights


class Detector(NamedTuple):
    """Our detector of a shipped config."""

    config: ExperimentConfig
    task: Any
    classes: Sequence[ClassEntry]


def build_detector(config_name, family, *, class_names, canvas_size, overrides=()):
    """Builds the detector of a shipped config for weights of a family."""
    canvas = f"data.canvas_size=[{canvas_size[0]}, {canvas_size[1]}]"
    config = load_config(ExperimentConfig, config_name, overrides=[canvas, *overrides])
    config = dataclasses.replace(config, model=resolve_auto(config.model, family))
    task = build_task(config, num_classes=len(class_names), canvas_size=canvas_size)
    return Detector(config, task, [ClassEntry(name, name) for name in class_names])


def load(detector, pretrained):
    """Loads weights into the detector and returns the report on them."""
    model = detector.config.model
    parts = find_foreign_parts(model, pretrained.stored.tensors, detector.classes)
    return load_pretrained(
        detector.task.model,
        pretrained._replace(notes=parts.notes),
        normalization=model.normalization,
        classes=detector.classes,
        class_layers=detector.task.class_layers,
        other_parts=parts.recipe,
    )


def open_file(path):
    return open_pretrained(WeightsConfig(path=str(path)))


def drawn_weights(state):
    """Weights that were drawn here, as if they came from a file."""
    stored = StoredWeights(state, "drawn")
    return Pretrained(WeightsConfig(path="drawn"), stored, recognize(state).family)


def place(images, canvas_size):
    """A batch of images [h, w, 3] at the top left of the canvas."""
    count = len(images)
    canvases = np.zeros((count, *canvas_size, 3), np.uint8)
    for canvas, image in zip(canvases, images, strict=True):
        canvas[: image.shape[0], : image.shape[1]] = image
    return Batch(
        images=canvases,
        boxes=np.zeros((count, 1, 4), np.float32),
        classes=np.zeros((count, 1), np.int32),
        is_crowd=np.zeros((count, 1), bool),
        records=np.arange(count),
        original_sizes=np.array([image.shape[:2] for image in images], np.float32),
        scales=np.ones((count, 2), np.float32),
        offsets=np.zeros((count, 2), np.float32),
    )


def expected_of(expected, number, labels):
    """Boxes y1 x1 y2 x2, scores, class ids and masks of one image; no boxes without an area."""
    boxes = expected[f"boxes{number}"][:, [1, 0, 3, 2]]
    kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    ids = np.array([labels[label] for label in expected[f"labels{number}"]], np.int32)
    masks = expected[f"masks{number}"][kept, 0] if f"masks{number}" in expected else None
    return boxes[kept], expected[f"scores{number}"][kept], ids[kept], masks


def assert_same_detections(found, expected, labels, *, least, first=0):
    """As many detections an image, each with a partner.

    Boxes within 0.05 pixels, scores within 0.001 and, where there are any, masks within 0.01.
    """
    for row, count in enumerate(np.asarray(found.num_detections)):
        number = first + row  # of the image in `expected`
        boxes, scores, ids, masks = expected_of(expected, number, labels)
        assert len(boxes) == count >= least, f"image {number}"
        ours = [np.asarray(values)[row, :count] for values in found[:3]]
        same = np.abs(ours[0][:, None] - boxes).max(axis=-1) <= 0.05
        same &= np.abs(ours[1][:, None] - scores) <= 1e-3
        same &= ours[2][:, None] == ids
        assert same.any(axis=0).all(), f"image {number} lacks {np.flatnonzero(~same.any(axis=0))}"
        assert same.any(axis=1).all(), f"image {number} adds {np.flatnonzero(~same.any(axis=1))}"
        if masks is not None:
            ours = np.asarray(found.masks)[row, :count]
            np.testing.assert_allclose(ours, masks[same.argmax(axis=1)], rtol=0, atol=1e-2)


def build_recorded(
    path, draw, config_name, overrides, *, backbone=("model.backbone.depth=18",), left_over=()
):
    """A detector of four classes with drawn weights, what was recorded of it, and its shapes.

    Args:
        path: of the record.
        draw: draws the weights from shapes by name.
        config_name: of the shipped config.
        overrides: of its keys.
        backbone: more of them, which make it small.
        left_over: endings of the names that have no place here.
    """
    with np.load(path) as sample:
        recorded = dict(sample)
    shapes = {
        name: tuple(map(int, shape.split()))
        for name, shape in zip(recorded["names"].tolist(), recorded["shapes"], strict=True)
    }
    pretrained = drawn_weights(draw(shapes))
    detector = build_detector(
        config_name,
        pretrained.family,
        class_names=["a", "b", "c", "d"],
        canvas_size=(128, 160),
        overrides=[*backbone, *overrides],
    )
    report = load(detector, pretrained)
    assert not report.missing
    assert not report.shape_skipped
    assert not report.differences
    unused = [name for name in report.unused if not name.endswith("num_batches_tracked")]
    assert all(name.endswith(tuple(left_over)) for name in unused), unused
    assert "The file has 4 classes, which are taken in the order of classes.csv." in report.text()
    return detector, recorded, shapes
