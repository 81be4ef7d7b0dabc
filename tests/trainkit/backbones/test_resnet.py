import functools
import math

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import DropBlock
from tpudet.trainkit.backbones.residual import ResidualNetwork
from tpudet.trainkit.backbones.resnet import RESNETS, ResNet
from tpudet.trainkit.backbones.seresnext import SEResNeXt

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)

# Of torchvision's models (200: timm's) without their classifier.
TRAINABLE = {
    18: 11_689_512 - 513_000,
    34: 21_797_672 - 513_000,
    50: 25_557_032 - 2_049_000,
    101: 44_549_160 - 2_049_000,
    152: 60_192_808 - 2_049_000,
    200: 64_673_832 - 2_049_000,
}


def build(depth, **settings):
    backbone = ResNet(**{"depth": depth, "make_norm": NORM, **settings})
    backbone.build((None, None, None, 3))
    return backbone


def build_without_values(depth, **settings):
    """As `build`, but no variable is drawn, which would take most of the time."""
    with keras.StatelessScope(initialize_variables=False):
        return build(depth, **settings)


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("depth", RESNETS)
def test_number_of_parameters(depth):
    backbone = build_without_values(depth)
    assert count(backbone.trainable_variables) == TRAINABLE[depth]
    if depth == 50:
        assert count(backbone.variables) == 23_561_152


def test_number_of_parameters_of_resnext():
    # torchvision's resnext50_32x4d without its classifier.
    backbone = build_without_values(50, groups=32, group_width=4)
    assert count(backbone.trainable_variables) == 25_028_904 - 2_049_000


def test_paths_are_unique_and_readable():
    paths = [variable.path for variable in build_without_values(50).variables]
    assert len(set(paths)) == len(paths)
    assert {
        "backbone/stem/conv/kernel",
        "backbone/stage1/block0/shortcut/kernel",
        "backbone/stage1/block0/conv1/norm/gamma",
        "backbone/stage4/block2/conv3/kernel",
    } <= set(paths)
    assert "backbone/stage1/block1/shortcut/kernel" not in paths


@pytest.mark.parametrize(
    ("depth", "channels"), [(18, [64, 128, 256, 512]), (50, [256, 512, 1024, 2048])]
)
def test_levels(depth, channels):
    backbone = build(depth)
    features = backbone(np.zeros((1, 64, 96, 3), np.float32))
    assert {level: tuple(f.shape) for level, f in features.items()} == {
        level: (1, 64 // 2**level, 96 // 2**level, n)
        for level, n in zip((2, 3, 4, 5), channels, strict=True)
    }
    assert backbone.channels == dict(zip((2, 3, 4, 5), channels, strict=True))


@pytest.mark.parametrize("make", [ResNet, SEResNeXt])
def test_stages_beyond_the_coarsest_level_are_left_out(make):
    backbone = make(depth=50, max_level=3, make_norm=NORM)
    assert list(backbone(np.zeros((1, 64, 64, 3), np.float32))) == [2, 3] == list(backbone.channels)
    stages = {v.path.split("/")[1] for v in backbone.variables}
    assert stages == {"stem", "stage1", "stage2"}


def test_block_begins_as_the_identity():
    block = build(18).stages[1][1]
    inputs = np.abs(np.random.default_rng(0).normal(size=(1, 8, 8, 128))).astype(np.float32)
    np.testing.assert_array_equal(block(inputs, training=True), inputs)


@pytest.mark.parametrize(
    ("style", "strides"), [("tensorflow", [1, 2, 1]), ("torch", [1, 2, 1]), ("keras", [2, 1, 1])]
)
def test_style_is_where_a_bottleneck_steps(style, strides):
    stages = ResNet(depth=50, style=style, make_norm=NORM).stages
    assert [[conv.strides for conv in stage[0].convs] for stage in stages[1:]] == [strides] * 3
    assert [conv.strides for stage in stages for conv in stage[1].convs] == [1] * 12
    assert ResNet(depth=50, style=style, make_norm=NORM).symmetric_pooling == (
        style != "tensorflow"
    )


class Nothing(keras.layers.Layer):
    """A stem or block that hands its input on."""

    filters = filters_out = 1

    def call(self, inputs, training=False):
        return inputs


@pytest.mark.parametrize(
    ("symmetric", "maxima"), [(False, [[10, 11], [14, 15]]), (True, [[5, 7], [13, 15]])]
)
def test_pooling_of_sixteen_numbers(symmetric, maxima):
    # Rows 0-2 and 2-3 of 0..15 in a square; with a row of padding above, rows 0-1 and 1-3.
    network = ResidualNetwork(
        stem=Nothing(),
        blocks_per_stage=[1],
        block=lambda stage, index: Nothing(),
        max_level=2,
        symmetric_pooling=symmetric,
        gradient_checkpointing=False,
        name="backbone",
    )
    features = network(np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1))
    np.testing.assert_array_equal(np.array(features[2])[0, :, :, 0], maxima)


def test_drop_block_is_in_the_last_two_stages():
    drop_block = functools.partial(DropBlock, keep_prob=0.5, size=1, schedule_steps=0)
    backbone = build(18, drop_block=drop_block, seed=7)
    states = {v.path: tuple(v.numpy()) for v in backbone.variables if "drop_block" in v.path}
    assert len(states) == len(set(states.values())) == 2 * 2 * 3  # two convolutions, one shortcut
    assert {path.split("/")[1] for path in states} == {"stage3", "stage4"}
    images = np.random.default_rng(0).normal(size=(2, 64, 96, 3)).astype(np.float32)
    plain = build(18)
    for ours, theirs in zip(
        plain.variables, [v for v in backbone.variables if v.path not in states], strict=True
    ):
        ours.assign(theirs)
    for found, expected in zip(backbone(images).values(), plain(images).values(), strict=True):
        np.testing.assert_array_equal(found, expected)
    found, expected = backbone(images, training=True), plain(images, training=True)
    np.testing.assert_array_equal(found[3], expected[3])
    assert np.any(np.array(found[4]) != np.array(expected[4]))


def test_unknown_depth():
    with pytest.raises(ValueError, match=r"depth is 42; choose one of \[18, 34"):
        ResNet(depth=42, make_norm=NORM)
