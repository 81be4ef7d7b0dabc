from functools import partial
from typing import Any

import numpy as np
import pytest

from tpudet.detection.modeling.config import RetinaNetConfig
from tpudet.detection.modeling.foreign_parts import find_foreign_parts
from tpudet.detection.modeling.fpn import FPN
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.mask_rcnn_config import MaskRCNNConfig, RoIAlignConfig
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.config import BatchNormConfig
from tpudet.trainkit.class_list import ClassEntry

NORM = ("gamma", "beta", "moving_mean", "moving_variance")


def names_of_tensorflow(*, classes, separable):
    """Names and shapes in a checkpoint of the original code, background among the classes."""
    shapes = {}

    def conv(name, size, inputs, outputs):
        if separable:
            shapes[f"{name}/depthwise_kernel"] = (size, size, inputs, 1)
            shapes[f"{name}/pointwise_kernel"] = (1, 1, inputs, outputs)
        else:
            shapes[f"{name}/kernel"] = (size, size, inputs, outputs)
        shapes[f"{name}/bias"] = (outputs,)

    for level, channels in ((3, 24), (4, 32), (5, 40)):
        conv(f"fpn/l{level}", 1, channels, 16)
        conv(f"fpn/post_hoc_d{level}", 3, 16, 16)
    for level in (6, 7):
        conv(f"fpn/p{level}", 3, 16, 16)
    for level in range(3, 8):
        shapes |= {f"fpn/p{level}-bn/{part}": (16,) for part in NORM}
    for net, outputs in (("class", 9 * (classes + 1)), ("box", 9 * 4)):
        for index in range(2):
            name = f"retinanet/{net}_net/{net}-{index}"
            conv(name, 3, 16, 16)
            for level in range(3, 8):
                shapes |= {f"{name}-{level}/{part}": (16,) for part in NORM}
        conv(f"retinanet/{net}_net/{net}-predict", 3, 16, outputs)
    return shapes


@pytest.mark.parametrize("separable", [False, True])
def test_every_variable_has_a_name_of_its_own_and_the_shape(separable):
    parts: dict[str, Any] = {
        "min_level": 3,
        "max_level": 7,
        "num_filters": 16,
        "separable": separable,
        "make_norm": partial(BatchNorm, momentum=0.99, epsilon=1e-3),
    }
    neck = FPN(
        coarse_levels="convolution",
        coarse_input="pyramid",
        coarse_relu=True,
        symmetric_padding=False,
        lateral_norms=False,
        last_backbone_level=5,
        **parts,
    )
    neck.build({level: (None, None, None, 8 * level) for level in (2, 3, 4, 5)})
    head = RetinaNetHead(
        num_classes=3,
        anchors_per_location=9,
        num_convs=2,
        activation="relu",
        norm_groups=None,
        norm_epsilon=1e-5,
        level_scales=False,
        centerness=False,
        **parts,
    )
    head.build((None, None, None, 16))
    stored = names_of_tensorflow(classes=3, separable=separable)
    find = parts_of({name: np.zeros(shape) for name, shape in stored.items()}, "a", "b", "c").recipe
    used = []
    for variable in [*neck.variables, *head.variables]:
        recipe = find(variable.path, stored)
        assert recipe is not None
        (name,) = recipe.names
        used.append(name)
        assert recipe.convert(np.zeros(stored[name])).shape == tuple(variable.shape)
    assert sorted(used) == sorted(stored)


def parts_of(tensors, *names, model=None):
    classes = [ClassEntry(name, name) for name in names]
    return find_foreign_parts(model or RetinaNetConfig(padding="mean"), tensors, classes)


def test_background_is_channel_0_of_every_anchor():
    """Of background, cat and dog."""
    bias = "retinanet/class_net/class-predict/bias"
    parts = parts_of({"fpn/p3-bn/gamma": np.zeros(1), bias: np.zeros(27)}, "cat", "dog")
    assert parts.notes == ("The file has 2 classes, which are taken in the order of classes.csv.",)
    recipe = parts.recipe("head/class_predict/bias", [bias])
    assert recipe is not None
    expected = np.delete(np.arange(27), range(0, 27, 3))
    np.testing.assert_array_equal(recipe.convert(np.arange(27)), expected)
    kernels = np.arange(54).reshape(1, 2, 27)
    np.testing.assert_array_equal(recipe.convert(kernels)[0, 1], expected + 27)


def test_classes_of_coco_are_found_by_name_and_others_start_fresh():
    bias = "retinanet/class_net/class-predict/bias"
    tensors = {"fpn/p3-bn/gamma": np.zeros(1), bias: np.zeros(9 * 91)}
    parts = parts_of(tensors, "dog", "widget")
    assert parts.notes == (
        "1 of 2 classes have the names of COCO's and take their weights; widget start fresh.",
    )
    recipe = parts.recipe("head/class_predict/bias", [bias])
    assert recipe is not None
    assert recipe.convert(np.arange(9 * 91)).tolist()[:4] == [18, None, 18 + 91, None]
    # As many channels as classes: one of them is the background, so no order is certain.
    tensors[bias] = np.zeros(9 * 2)
    parts = parts_of(tensors, "a", "b")
    assert parts.recipe("head/class_predict/bias", [bias]) is None
    assert "The file has 1 classes, which it does not name" in parts.notes[0]


def test_other_necks_have_no_names_there():
    recipe = parts_of({"retinanet/class_net/class-0/kernel": np.zeros(1)}, "a").recipe
    for path in ("neck/cell0/node4/kernel", "neck/lateral3/norm/gamma", "head/mask/kernel"):
        assert recipe(path, []) is None


def test_settings_that_its_mask_rcnn_does_not_expect_and_norms_without_a_place_are_told():
    named = {f"mask_head/{name}/gamma": np.zeros(1) for name in ("batch_normalization_4",)}
    tensors = {"rpn_head/rpn/kernel": np.zeros(1), "box_head/class-predict/bias": np.zeros(2)}
    owner = "tensorflow/tpu's detectors expect"
    first, *notes = parts_of(tensors, "a", model=MaskRCNNConfig()).notes
    assert "The file has 1 classes" in first
    assert notes == [
        f"model.padding is black; weights of {owner} mean.",
        f"model.roi_align.sampling_ratio is 2; weights of {owner} 1.",
        f"model.roi_align.aligned is true; weights of {owner} false.",
    ]
    model = MaskRCNNConfig(
        padding="mean",
        roi_align=RoIAlignConfig(sampling_ratio=1, aligned=False),
        batch_norm=BatchNormConfig(),
    )
    _, *notes = parts_of(tensors | named, "a", model=model).notes
    assert notes[0].startswith("The file has norms behind layers of its RPN and heads")
    assert notes[1:] == [f"model.batch_norm is set; these weights of {owner} null."]
