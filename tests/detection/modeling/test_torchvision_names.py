"""Names and layouts of torchvision's detectors: every variable has a tensor of its own there."""

import re

import numpy as np
import pytest

from tpudet.detection.modeling.torchvision_names import (
    COCO_NAMES,
    StoredClasses,
    is_torchvision_detector,
    match_classes,
    torchvision_detector_part,
)
from tpudet.trainkit.class_list import ClassEntry

RETINANET = "head.classification_head.cls_logits.bias"
REGIONS = "roi_heads.box_predictor.cls_score.bias"


TWO = StoredClasses(3, (1, 2), ())  # behind the background


def classes_of(*names):
    return [ClassEntry(f"/m/{number}", name) for number, name in enumerate(names)]


def convert(path, value, classes=TWO, names=()):
    recipe = torchvision_detector_part(path, names, min_level=3, roi_size=2, classes=classes)
    assert recipe is not None
    return recipe.names[0], recipe.convert(value)


def test_coco_has_80_names_and_91_labels():
    assert len(COCO_NAMES) == 91
    assert len({name for name in COCO_NAMES if name}) == 80
    assert [COCO_NAMES[label] for label in (1, 13, 90)] == ["person", "stop sign", "toothbrush"]


def test_classes_are_found_by_name_in_coco():
    tensors = {RETINANET: np.zeros(9 * 91)}
    found = match_classes(
        tensors, classes_of("Dog", "widget", "traffic_light"), anchors_per_location=9
    )
    assert (found.num_channels, found.channels) == (91, (18, None, 10))
    assert found.notes == (
        "2 of 3 classes have the names of COCO's and take their weights; widget start fresh.",
    )


@pytest.mark.parametrize(
    ("tensors", "channels", "note"),
    [
        ({RETINANET: np.zeros(9 * 3)}, (1, 2), "2 classes, which are taken in the order"),
        ({RETINANET: np.zeros(9 * 2)}, (0, 1), "2 classes, which are taken in the order"),
        ({REGIONS: np.zeros(3)}, (1, 2), "2 classes, which are taken in the order"),
        ({REGIONS: np.zeros(8)}, (None, None), "7 classes, .*has 2: the class layers start fresh"),
    ],
)
def test_classes_of_other_files_have_no_names(tensors, channels, note):
    found = match_classes(tensors, classes_of("cat", "dog"), anchors_per_location=9)
    assert found.channels == channels
    assert re.search(note, found.notes[0])


def test_names_of_either_version():
    for path, present, before in (
        ("neck/lateral4/kernel", "backbone.fpn.inner_blocks.1.0.weight", "inner_blocks.1.weight"),
        ("neck/conv3/bias", "backbone.fpn.layer_blocks.0.0.bias", "layer_blocks.0.bias"),
        (
            "head/class_tower/conv3/kernel",
            "head.classification_head.conv.3.0.weight",
            "classification_head.conv.6.weight",
        ),
        ("rpn/conv0/kernel", "rpn.head.conv.0.0.weight", "rpn.head.conv.weight"),
        (
            "mask_head/tower/conv2/bias",
            "roi_heads.mask_head.2.0.bias",
            "mask_head.mask_fcn3.bias",
        ),
    ):
        value = np.zeros((5, 4, 1, 1) if path.endswith("kernel") else 5)
        assert convert(path, value)[0] == present
        start = present[: present.index(before.split(".")[0])]
        assert convert(path, value, names=[start + before])[0] == start + before
    for path in ("neck/norm3/gamma", "head/class_tower/norm0_level3/beta", "box_head/tower/x"):
        assert (
            torchvision_detector_part(
                path, [], min_level=3, roi_size=2, classes=StoredClasses(0, (None,), ())
            )
            is None
        )


def test_boxes_are_x_before_y():
    # Two anchors.
    expected = [1, 0, 3, 2, 5, 4, 7, 6]
    for path in ("head/box_predict/bias", "rpn/box_predict/bias"):
        np.testing.assert_array_equal(convert(path, np.arange(8))[1], expected)
    # Of background and two classes, the classes.
    name, found = convert("box_head/box_predict/bias", np.arange(12))
    assert name == "roi_heads.box_predictor.bbox_pred.bias"
    np.testing.assert_array_equal(found, [5, 4, 7, 6, 9, 8, 11, 10])


def test_channels_of_classes_by_hand():
    # Two anchors of background, cat and dog.
    found = convert("head/class_predict/bias", np.arange(6))[1]
    np.testing.assert_array_equal(found, [1, 2, 4, 5])
    some = StoredClasses(3, (2, None), ())
    found = convert("head/class_predict/bias", np.arange(6), some)[1]
    assert found.tolist() == [2, None, 5, None]
    # Regions have a channel of background here too, and masks have none.
    found = convert("box_head/class_predict/bias", np.arange(3), some)[1]
    assert found.tolist() == [0, 2, None]
    found = convert("mask_head/mask_predict/kernel", np.arange(3.0).reshape(3, 1, 1, 1))[1]
    assert found.tolist() == [[[[1.0, 2.0]]]]
    # Without any class of ours the layer counts as not there.
    none = StoredClasses(3, (None, None), ())
    for layer in ("head/class_predict", "box_head/box_predict", "mask_head/mask_predict"):
        assert (
            torchvision_detector_part(f"{layer}/bias", [], min_level=3, roi_size=2, classes=none)
            is None
        )


def test_a_region_is_flattened_by_rows_and_columns_before_channels():
    # Three units that see two channels of 2 x 2 bins.
    theirs = np.arange(24.0).reshape(3, 2, 2, 2)
    _, found = convert("box_head/dense0/kernel", theirs.reshape(3, 8))
    pooled = np.random.default_rng(0).normal(size=(2, 2, 2))  # rows, columns, channels
    expected = theirs.reshape(3, 8) @ pooled.transpose(2, 0, 1).ravel()
    np.testing.assert_allclose(pooled.ravel() @ found, expected)


def test_a_detector_is_told_by_its_pyramid():
    assert is_torchvision_detector(["model.backbone.fpn.inner_blocks.0.weight"])
    assert not is_torchvision_detector(["conv1.weight", "fpn/l3/kernel"])
