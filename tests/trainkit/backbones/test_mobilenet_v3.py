import math
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.layers import activate
from tpudet.trainkit.backbones.mobilenet_v3 import MobileNetV3, block_specs

NORM = partial(BatchNorm, momentum=0.9, epsilon=1e-3)


def build(**settings):
    backbone = MobileNetV3(make_norm=NORM, **settings)
    backbone.build((None, None, None, 3))
    return backbone


def shapes_of(backbone):
    return {v.path.removeprefix("backbone/"): tuple(v.shape) for v in backbone.variables}


def test_number_of_parameters():
    """Of torchvision's mobilenet_v3_large, in the paper 5.4 M, without its two dense layers."""
    with keras.StatelessScope(initialize_variables=False):
        backbone = build()
    count = sum(math.prod(v.shape) for v in backbone.trainable_variables)
    assert count == 5_483_032 - (960 * 1280 + 1280) - (1280 * 1000 + 1000)


def test_the_blocks_of_table_1_of_the_paper():
    specs = block_specs()
    assert [spec.filters_expanded for spec in specs] == [
        *(16, 64, 72, 72, 120, 120, 240, 200, 184, 184, 480, 672, 672, 960, 960),
    ]
    assert [spec.filters_out for spec in specs] == [
        *(16, 24, 24, 40, 40, 40, 80, 80, 80, 80, 112, 112, 160, 160, 160),
    ]
    assert [index for index, spec in enumerate(specs) if spec.strides == 2] == [1, 3, 6, 12]
    assert [index for index, spec in enumerate(specs) if spec.kernel_size == 5] == [
        *(3, 4, 5, 12, 13, 14),
    ]
    assert [index for index, spec in enumerate(specs) if spec.squeezes] == [
        *(3, 4, 5, 10, 11, 12, 13, 14),
    ]
    assert [spec.activation for spec in specs] == ["relu"] * 6 + ["hard_silu"] * 9


def test_paths_and_shapes():
    with keras.StatelessScope(initialize_variables=False):
        shapes = shapes_of(build())
    expected = {
        "stem/conv/kernel": (3, 3, 3, 16),
        "stage2/block1/expand/kernel": (1, 1, 16, 64),
        "stage3/block3/depthwise/depthwise_kernel": (5, 5, 72, 1),
        "stage3/block3/squeeze/kernel": (1, 1, 72, 24),  # 18 would be 16, which is under 90 %
        "stage5/block11/excite/kernel": (1, 1, 168, 672),
        "stage6/block14/project/norm/gamma": (160,),
        "stage7/block15/conv/kernel": (1, 1, 160, 960),
    }
    assert {path: shapes[path] for path in expected} == expected
    assert "stage1/block0/expand/kernel" not in shapes


@pytest.mark.parametrize(
    ("max_level", "channels"),
    [
        (2, {2: 24}),
        (4, {2: 24, 3: 40, 4: 112}),
        (5, {2: 24, 3: 40, 4: 112, 5: 960}),
        (6, {2: 24, 3: 40, 4: 112, 5: 160, 6: 960}),
    ],
)
def test_levels(max_level, channels):
    """Level 6 has the stride of level 5, which then is the first block of that stride."""
    backbone = build(max_level=max_level)
    assert backbone.channels == channels
    features = tf.function(backbone)(np.zeros((1, 64, 96, 3), np.float32), training=True)
    assert {level: tuple(f.shape) for level, f in features.items()} == {
        level: (1, 64 // 2 ** min(level, 5), 96 // 2 ** min(level, 5), count)
        for level, count in channels.items()
    }
    if max_level == 6:
        first = backbone.blocks[12]
        assert first.depthwise.strides == 2
        assert features[5].shape[-1] == first.project.filters


def test_hard_silu_by_hand():
    """x relu6(x + 3) / 6: 0 up to -3, x from 3 on, 1 * 4 / 6 at 1."""
    values = np.array([-4.0, -3.0, -1.0, 0.0, 1.0, 3.0, 5.0], np.float32)
    expected = [0.0, 0.0, -1 / 3, 0.0, 2 / 3, 3.0, 5.0]
    np.testing.assert_allclose(activate(values, "hard_silu"), expected, rtol=1e-6, atol=1e-7)
