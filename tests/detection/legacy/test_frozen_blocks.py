"""Freeze patterns of the predecessor in our names, against real networks."""

import functools
import re

import keras
import pytest

from tpudet.detection.legacy.frozen_blocks import frozen_blocks, number_pattern
from tpudet.detection.legacy.train_settings import DEFAULT_FROZEN
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import EfficientNet
from tpudet.trainkit.training.freezing import freeze as freeze_layers

NORM = functools.partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def test_frozen_blocks_are_those_of_the_real_network() -> None:
    """b0 has 16 blocks in stages of 1, 2, 2, 3, 3, 4 and 1: blocks 0 to 9 are not quite stage 5."""
    pattern = r"efficientnet-b0/(stem|blocks_[0-9])/conv2d"
    patterns = frozen_blocks(f"r'{pattern}'", "efficientnet", 0).patterns
    assert patterns == (
        "stem",
        "stage1",
        "stage2",
        "stage3",
        "stage4",
        "backbone/stage5/block([8-9])/",
    )
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, 64, 64, 3))
    frozen = freeze_layers(keras.Sequential([keras.Input((64, 64, 3)), backbone]), patterns)
    blocks = {int(n) for path in frozen.variables for n in re.findall(r"/block(\d+)/", path)}
    assert blocks == set(range(10))
    assert any("/stem/" in path for path in frozen.variables)


@pytest.mark.parametrize(
    ("depth", "freeze"),
    [(18, ("stem", "stage1", "stage2")), (34, ("stem", "stage1", "backbone/stage2/block(0)/"))],
)
def test_shallow_resnets_froze_11_convolutions_all_the_same(
    depth: int, freeze: tuple[str, ...]
) -> None:
    """ResNet-18: stem, then 5 for the first stage (a shortcut and 2 x 2) and 5 for the second."""
    assert frozen_blocks(DEFAULT_FROZEN, "resnet", depth).patterns == freeze


def test_any_pattern_is_tried_on_all_names() -> None:
    """ResNet-50: conv2d to conv2d_10 are stem and stage 1, conv2d_11 begins stage 2."""
    cases = {
        r"resnet50/conv2d(|_[1-9]|_1[0-4])/": ("stem", "stage1", "backbone/stage2/block(0)/"),
        r"resnet50/conv2d_([1-9]|10)/": ("stage1",),
        "resnet50/": ("backbone",),
        "conv2d": (),  # does not begin a name
        "resnet101/": (),
    }
    for pattern, patterns in cases.items():
        found = frozen_blocks(pattern, "resnet", 50)
        assert found.patterns == patterns, pattern
        assert found.had_effect == bool(patterns)


@pytest.mark.parametrize(
    ("pattern", "backbone", "depth", "names_batch_norm"),
    [
        (DEFAULT_FROZEN, "resnet", 50, False),
        # As tensorflow/tpu had it later.
        (
            r"(resnet\d+)\/(conv2d(|_([1-9]|10))|batch_normalization(|_([1-9]|10)))\/",
            "resnet",
            50,
            True,
        ),
        ("resnet50/", "resnet", 50, True),
        ("backbone/efficientnet-b0/blocks_[0-3]/", "efficientnet", 0, True),
        ("backbone/efficientnet-b0/blocks_[0-3]/(depthwise_)?conv2d", "efficientnet", 0, False),
        ("efficientnet-b0/blocks_[0-3]/", "efficientnet", 0, False),  # without the scope: no effect
    ],
)
def test_a_pattern_that_names_batch_norm_froze_it_too(
    pattern: str, backbone: str, depth: int, names_batch_norm: bool
) -> None:
    assert frozen_blocks(pattern, backbone, depth).names_batch_norm == names_batch_norm


@pytest.mark.parametrize("numbers", [[0], [3, 4, 9, 10, 11, 20], range(15), range(25), [54]])
def test_a_pattern_of_numbers_means_exactly_them(numbers: list[int]) -> None:
    pattern = re.compile(f"({number_pattern(numbers)})")
    assert [n for n in range(300) if pattern.fullmatch(str(n))] == list(numbers)
