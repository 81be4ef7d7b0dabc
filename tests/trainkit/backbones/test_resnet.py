import math

import numpy as np
import pytest

from trainkit.backbones.resnet import RESNETS, ResNet

# Of torchvision's models (200: timm's) without their classifier.
TRAINABLE = {
    18: 11_689_512 - 513_000,
    34: 21_797_672 - 513_000,
    50: 25_557_032 - 2_049_000,
    101: 44_549_160 - 2_049_000,
    152: 60_192_808 - 2_049_000,
    200: 64_673_832 - 2_049_000,
}


def build(depth):
    backbone = ResNet(depth=depth)
    backbone.build((None, None, None, 3))
    return backbone


def count(variables):
    return sum(math.prod(variable.shape) for variable in variables)


@pytest.mark.parametrize("depth", RESNETS)
def test_number_of_parameters(depth):
    backbone = build(depth)
    assert count(backbone.trainable_variables) == TRAINABLE[depth]
    if depth == 50:
        assert count(backbone.variables) == 23_561_152


def test_paths_are_unique_and_readable():
    paths = [variable.path for variable in build(50).variables]
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


def test_block_begins_as_the_identity():
    block = build(18).stages[1][1]
    inputs = np.abs(np.random.default_rng(0).normal(size=(1, 8, 8, 128))).astype(np.float32)
    np.testing.assert_array_equal(block(inputs, training=True), inputs)


def test_unknown_depth():
    with pytest.raises(ValueError, match=r"depth is 42; choose one of \[18, 34"):
        ResNet(depth=42)
