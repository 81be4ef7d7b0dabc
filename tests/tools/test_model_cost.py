import runpy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest
from tools.model_cost import count_flops, count_parameters, predict_images

from tpudet.detection.modeling.bifpn import BiFPN
from tpudet.detection.modeling.heads import RetinaNetHead
from tpudet.detection.modeling.retinanet import RetinaNet
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.backbones.layers import Conv, ConvNorm

SMALL_MASK_RCNN = Path(__file__).parents[1] / "detection/modeling/small_mask_rcnn.py"
NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


class Chain(keras.Model):
    """Layers one after another."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = parts
        shape = (None, None, None, 3)
        for part in parts:
            if not part.built:
                part.build(shape)
            shape = (None, None, None, part.filters)
        self.built = True

    def call(self, images):
        outputs = keras.ops.cast(images, "float32")
        for part in self.parts:
            outputs = part(outputs)
        return outputs


@pytest.mark.parametrize(
    ("part", "flops", "parameters"),
    [
        # An 8x12 image becomes 4x6 places of 5 filters, each of 3x3x3 products; 5 biases.
        (Conv(5, 3, strides=2), 4 * 6 * 5 * 27, 27 * 5 + 5),
        (Conv(3, 5, kind="depthwise"), 8 * 12 * 3 * 25, 25 * 3 + 3),
        (Conv(7, 3, kind="separable", strides=2), 4 * 6 * 3 * 9 + 4 * 6 * 7 * 3, 27 + 21 + 7),
        # Each of 6 filters sees one of 3 channels.
        (Conv(6, 3, groups=3), 8 * 12 * 6 * 9, 9 * 6 + 6),
        # Scale and shift count as parameters, moving statistics do not.
        (ConvNorm(5, 1, make_norm=NORM), 8 * 12 * 5 * 3, 15 + 10),
    ],
)
def test_convolutions_by_hand(part, flops, parameters):
    model = Chain(part)
    assert count_flops(model, (8, 12)) == flops
    assert count_parameters(model) == parameters


def test_a_shared_layer_counts_as_often_as_it_is_called():
    shared = Conv(3, 3)
    model = Chain(shared, shared)
    assert count_flops(model, (8, 12)) == 2 * 8 * 12 * 3 * 27
    assert count_parameters(model) == 27 * 3 + 3


def test_counting_leaves_nothing_behind():
    before = keras.ops.conv
    dense = keras.layers.Dense.call
    with pytest.raises(ValueError, match="broken"):
        count_flops(Chain(Conv(5, 3), BrokenPart()), (8, 12))
    assert keras.ops.conv is before
    assert keras.layers.Dense.call is dense


class BrokenPart(keras.layers.Layer):
    filters = 1

    def call(self, inputs):
        raise ValueError("broken")


def test_efficientdet_d0():
    """The parameters that google/automl prints, to the last one, and the paper's multiply-adds."""
    parts: dict[str, Any] = {"min_level": 3, "max_level": 7, "make_norm": NORM, "num_filters": 64}
    model = RetinaNet(
        backbone=EfficientNet(variant="b0", drop_connect_rate=0.2, make_norm=NORM),
        neck=BiFPN(num_repeats=3, **parts),
        head=RetinaNetHead(
            num_classes=90,
            anchors_per_location=9,
            num_convs=3,
            separable=True,
            activation="silu",
            norm_groups=None,
            norm_epsilon=1e-5,
            level_scales=False,
            centerness=False,
            **parts,
        ),
        pixel_mean=(0.5,) * 3,
        pixel_std=(0.5,) * 3,
    )
    # automl gives the neck's convolutions biases, which batch normalisation takes away again:
    # 8 nodes a cell, 5 laterals of the first cell and the one of level 6.
    biases = 64 * (3 * 8 + 5 + 1)
    assert count_parameters(model) + biases == 3_880_067
    assert count_flops(model, (512, 512)) == pytest.approx(2.5e9, rel=0.01)


@pytest.mark.parametrize(("include_mask", "cascade"), [(True, False), (False, True)])
def test_both_stages_of_a_two_stage_detector_by_hand(include_mask, cascade):
    small_mask = SimpleNamespace(**runpy.run_path(str(SMALL_MASK_RCNN)))
    task = small_mask.build_task(include_mask=include_mask, cascade=cascade)
    whole = count_flops(partial(predict_images, task.predict), small_mask.CANVAS)
    first = count_flops(task.model, small_mask.CANVAS)
    # 30 proposals of 7 x 7 x 16 features, 24 units, 3 classes and background, boxes of each class
    # or of all: one head, or three.
    heads, num_boxes = (3, 1) if cascade else (1, 3)
    expected = 30 * heads * (7 * 7 * 16 * 24 + 24 * 4 + 24 * 4 * num_boxes)
    if include_mask:
        # 20 detections: two 3x3 convolutions at 14 x 14, a pixel of 28 x 28 sees one of 2 x 2
        # weights of each channel, and the one channel of its class.
        expected += 20 * (2 * 14 * 14 * 16 * 9 * 16 + 28 * 28 * 16 * 16 + 28 * 28 * 16)
    assert whole - first == expected
