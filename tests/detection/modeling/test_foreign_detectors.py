"""Names and layouts of other detectors: every variable has a tensor of its own there."""

import re

import numpy as np
import pytest

from tpudet.detection.modeling.config import AnchorConfig, RetinaNetConfig
from tpudet.detection.modeling.detectron2_names import DETECTRON2
from tpudet.detection.modeling.foreign_detectors import (
    COCO_CLASSES,
    COCO_LABELS,
    StoredClasses,
    foreign_detector_part,
    match_classes,
)
from tpudet.detection.modeling.foreign_parts import find_foreign_parts
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig
from tpudet.detection.modeling.mmdetection_names import MMDETECTION
from tpudet.detection.modeling.pyramid_config import FPNConfig
from tpudet.detection.modeling.torchvision_names import TORCHVISION
from tpudet.trainkit.class_list import ClassEntry

RETINANET = "head.classification_head.cls_logits.bias"
REGIONS = "roi_heads.box_predictor.cls_score.bias"


TWO = StoredClasses(3, 0, (1, 2), ())  # behind the background
BEFORE = StoredClasses(2, 2, (0, 1), ())  # before it
NINE = AnchorConfig(num_scales=3)


def classes_of(*names):
    return [ClassEntry(f"/m/{number}", name) for number, name in enumerate(names)]


def find_part(path, names=(), *, detector=TORCHVISION, classes=TWO, anchors=NINE):
    return foreign_detector_part(
        path, names, detector=detector, min_level=3, anchors=anchors, roi_size=2, classes=classes
    )


def convert(path, value, classes=TWO, names=(), **settings):
    recipe = find_part(path, names, classes=classes, **settings)
    assert recipe is not None
    return recipe.names[0], recipe.convert(value)


def test_coco_has_80_names_and_91_labels():
    assert len(COCO_LABELS) == 91
    assert len({name for name in COCO_LABELS if name}) == 80
    assert [COCO_LABELS[label] for label in (1, 13, 90)] == ["person", "stop sign", "toothbrush"]
    assert [COCO_CLASSES[number] for number in (0, 11, 79)] == ["person", "stop sign", "toothbrush"]


def test_classes_are_found_by_name_in_coco():
    tensors = {RETINANET: np.zeros(9 * 91)}
    found = match_classes(
        TORCHVISION, tensors, classes_of("Dog", "widget", "traffic_light"), anchors_per_location=9
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
    found = match_classes(TORCHVISION, tensors, classes_of("cat", "dog"), anchors_per_location=9)
    assert found.channels == channels
    assert re.search(note, found.notes[0])


@pytest.mark.parametrize("prefix", ["", "model."])
def test_classes_are_counted_by_the_anchors_of_the_file(prefix):
    """91 channels of 9 anchors: a model with 3 took them for 273."""
    boxes = "head.regression_head.bbox_reg.bias"
    tensors = {f"{prefix}{RETINANET}": np.zeros(9 * 91), f"{prefix}{boxes}": np.zeros(9 * 4)}
    nine, three = (
        match_classes(TORCHVISION, tensors, classes_of("dog"), anchors_per_location=count)
        for count in (9, 3)
    )
    assert (nine.num_channels, nine.channels) == (91, (18,))
    assert (three.num_channels, three.channels) == (91, (None,))
    assert three.notes == (
        "The file has 9 anchors per location, and model.anchors has 3: the class layers start "
        "fresh.",
    )


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
        (
            "box_head/dense0/bias",
            "roi_heads.box_head.fc6.bias",
            "roi_heads.box_head.5.bias",  # of the second version, behind four convolutions
        ),
    ):
        value = np.zeros((5, 4, 1, 1) if path.endswith("kernel") else 5)
        assert convert(path, value)[0] == present
        start = present[: present.index(before.split(".")[0])]
        assert convert(path, value, names=[start + before])[0] == start + before
    for path in ("neck/norm6/gamma", "head/class_tower/norm0_level3/beta", "box_head/tower/x"):
        assert find_part(path, classes=StoredClasses(0, 0, (None,), ())) is None


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
    some = StoredClasses(3, 0, (2, None), ())
    found = convert("head/class_predict/bias", np.arange(6), some)[1]
    assert found.tolist() == [2, None, 5, None]
    # Regions have a channel of background here too, and masks have none.
    found = convert("box_head/class_predict/bias", np.arange(3), some)[1]
    assert found.tolist() == [0, 2, None]
    found = convert("mask_head/mask_predict/kernel", np.arange(3.0).reshape(3, 1, 1, 1))[1]
    assert found.tolist() == [[[[1.0, 2.0]]]]
    # Without any class of ours the layer counts as not there.
    none = StoredClasses(3, 0, (None, None), ())
    for layer in ("head/class_predict", "box_head/box_predict", "mask_head/mask_predict"):
        assert find_part(f"{layer}/bias", classes=none) is None


def test_a_region_is_flattened_by_rows_and_columns_before_channels():
    # Three units that see two channels of 2 x 2 bins.
    theirs = np.arange(24.0).reshape(3, 2, 2, 2)
    _, found = convert("box_head/dense0/kernel", theirs.reshape(3, 8))
    pooled = np.random.default_rng(0).normal(size=(2, 2, 2))  # rows, columns, channels
    expected = theirs.reshape(3, 8) @ pooled.transpose(2, 0, 1).ravel()
    np.testing.assert_allclose(pooled.ravel() @ found, expected)


@pytest.mark.parametrize(
    ("detector", "ending"),
    [
        (DETECTRON2, "roi_heads.box_predictor.cls_score.bias"),
        (MMDETECTION, "roi_head.bbox_head.fc_cls.bias"),
    ],
)
def test_the_background_is_last_in_other_libraries(detector, ending):
    found = match_classes(
        detector, {ending: np.zeros(81)}, classes_of("dog"), anchors_per_location=3
    )
    assert (found.num_channels, found.background, found.channels) == (80, 80, (16,))
    found = match_classes(
        detector, {ending: np.zeros(3)}, classes_of("a", "b"), anchors_per_location=3
    )
    assert found[:3] == BEFORE[:3]
    # One class less than the file: no order is certain.
    found = match_classes(detector, {ending: np.zeros(3)}, classes_of("a"), anchors_per_location=3)
    assert found.channels == (None,)
    biases = convert("box_head/class_predict/bias", np.arange(3), BEFORE, detector=detector)[1]
    assert biases.tolist() == [2, 0, 1]
    boxes = convert("box_head/box_predict/bias", np.arange(8), BEFORE, detector=detector)[1]
    assert boxes.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


def test_anchors_of_mmdetection_come_by_ratio_and_ours_by_scale():
    classes = StoredClasses(1, 1, (0,), ())
    settings = {"detector": MMDETECTION, "classes": classes}
    found = convert("head/class_predict/bias", np.arange(9), **settings)[1]
    assert found.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    found = convert("head/box_predict/bias", np.arange(36), **settings)[1]
    assert found.reshape(9, 4)[1].tolist() == [13, 12, 15, 14]
    # Sides of their own are scales too.
    sides = AnchorConfig(num_scales=1, sides=(32.0, 40.0, 50.0))
    found = convert("head/class_predict/bias", np.arange(9), anchors=sides, **settings)[1]
    assert found.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    # In ATSS a tenth and a fifth of the anchor's side are the units.
    one = AnchorConfig(num_scales=1, aspect_ratios=(1.0,))
    names = ["bbox_head.atss_reg.bias"]
    found = convert(
        "head/box_predict/bias",
        np.array([1.0, 2.0, 3.0, 4.0]),
        anchors=one,
        names=names,
        **settings,
    )[1]
    np.testing.assert_allclose(found, [0.2, 0.1, 0.8, 0.6], rtol=1e-6)


@pytest.mark.parametrize(
    ("layer", "expected"), [("retina_cls", "[2.0, 1.0, 0.5]"), ("atss_cls", "[1.0]")]
)
def test_shapes_of_anchors_that_mmdetection_does_not_have_are_noted(layer, expected):
    tensors = {
        "neck.lateral_convs.0.conv.weight": np.zeros(1),
        f"bbox_head.{layer}.bias": np.zeros(9),
    }
    notes = find_foreign_parts(RetinaNetConfig(), tensors, classes_of("a")).notes
    assert (
        "model.anchors.aspect_ratios is [1.0, 2.0, 0.5]; weights of MMDetection's detectors expect "
        f"{expected}."
    ) in notes


@pytest.mark.parametrize("detector", [DETECTRON2, MMDETECTION])
def test_boxes_that_all_classes_share_are_taken_whole(detector):
    settings = {"detector": detector, "classes": BEFORE}
    bias = convert("box_head/box_predict/bias", np.arange(4), **settings)[1]
    assert bias.tolist() == [1, 0, 3, 2]
    kernel = np.arange(8.0).reshape(4, 2)  # of two units
    found = convert("box_head/box_predict/kernel", kernel, **settings)[1]
    assert found.tolist() == [[2, 0, 6, 4], [3, 1, 7, 5]]


def test_no_note_asks_for_a_key_without_effect():
    """Two stages subsample their coarse levels; convolved ones are padded."""
    name = {"backbone.fpn_lateral2.weight": np.zeros(1)}

    def notes(**neck):
        model = MaskRCNNConfig(neck=FPNConfig(**neck))
        return " ".join(find_foreign_parts(model, name, classes_of("a")).notes)

    assert "neck." not in notes()
    assert "model.neck.symmetric_padding is false" in notes(coarse_levels="convolution")


def test_a_detector_is_told_by_its_pyramid():
    """And says what it expects of the model, here of one with torchvision's anchors."""
    anchors = AnchorConfig(num_scales=1, layout="torchvision", aspect_ratios=(2.0, 1.0, 0.5))
    model = MaskRCNNConfig(anchors=anchors)
    for name, owner in (
        ("model.backbone.fpn.inner_blocks.0.weight", None),
        ("backbone.fpn_lateral2.weight", "Detectron2's"),
        ("neck.lateral_convs.0.conv.weight", "MMDetection's"),
    ):
        notes = find_foreign_parts(model, {name: np.zeros(1)}, classes_of("a")).notes
        expected = (
            f"model.anchors.layout is torchvision; weights of {owner} detectors expect corner."
        )
        assert (expected in notes) == (owner is not None)
    assert not find_foreign_parts(model, {"conv1.weight": np.zeros(1)}, classes_of("a")).notes
    normed = find_foreign_parts(
        model, {"backbone.fpn.inner_blocks.0.1.weight": np.zeros(1)}, classes_of("a")
    )
    assert (
        "model.batch_norm is null; these weights of torchvision's detectors expect norms."
        in normed.notes
    )
