import math
from functools import partial

import keras
import numpy as np
import pytest

from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.efficientnet import (
    VARIANTS,
    EfficientNet,
    block_specs,
    endpoints,
    round_filters,
)
from tpudet.trainkit.backbones.inverted_residual import drop_connect

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)

# Blocks, levels 2 to 5 as {block: channels}, trainable parameters of keras.applications (b8 and
# lite: of timm), width of the 1x1 before the classifier, which the backbone does not have. Papers
# print 5.3, 7.8, 9.2, 12, 19, 30, 43, 66 M; lite 4.7, 5.4, 6.1, 8.2, 13.0 M.
TABLE = {
    "b0": (16, {2: 24, 4: 40, 10: 112, 15: 320}, 5_288_548, 1280),
    "b1": (23, {4: 24, 7: 40, 15: 112, 22: 320}, 7_794_184, 1280),
    "b2": (23, {4: 24, 7: 48, 15: 120, 22: 352}, 9_109_994, 1408),
    "b3": (26, {4: 32, 7: 48, 17: 136, 25: 384}, 12_233_232, 1536),
    "b4": (32, {5: 32, 9: 56, 21: 160, 31: 448}, 19_341_616, 1792),
    "b5": (39, {7: 40, 12: 64, 26: 176, 38: 512}, 30_389_784, 2048),
    "b6": (45, {8: 40, 14: 72, 30: 200, 44: 576}, 43_040_704, 2304),
    "b7": (55, {10: 48, 17: 80, 37: 224, 54: 640}, 66_347_960, 2560),
    "b8": (61, {11: 56, 19: 88, 41: 248, 60: 704}, 87_413_142, 2816),
    "lite0": (16, {2: 24, 4: 40, 10: 112, 15: 320}, 4_652_008, 1280),
    "lite1": (21, {3: 24, 6: 40, 14: 112, 20: 320}, 5_416_680, 1280),
    "lite2": (21, {3: 24, 6: 48, 14: 120, 20: 352}, 6_092_072, 1280),
    "lite3": (24, {3: 32, 6: 48, 16: 136, 23: 384}, 8_197_096, 1280),
    "lite4": (30, {4: 32, 8: 56, 20: 160, 29: 448}, 13_006_568, 1280),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_and_levels(variant):
    specs = block_specs(variant)
    blocks, levels, _, _ = TABLE[variant]
    assert len(specs) == blocks
    found = {
        index: specs[index].filters_out for level, index in endpoints(specs).items() if level > 1
    }
    assert found == levels


def parameters_of(specs, lite):
    """From the shapes of the blocks alone: kernels, scales and shifts, biases of the squeeze."""
    total = 3 * 3 * 3 * specs[0].filters_in + 2 * specs[0].filters_in
    for spec in specs:
        wide = spec.filters_in * spec.expansion
        if spec.expansion > 1:
            total += spec.filters_in * wide + 2 * wide
        total += spec.kernel_size**2 * wide + 2 * wide
        total += wide * spec.filters_out + 2 * spec.filters_out
        if not lite:
            squeezed = spec.filters_in // 4
            total += 2 * wide * squeezed + squeezed + wide
    return total


@pytest.mark.parametrize("variant", VARIANTS)
def test_number_of_parameters(variant):
    specs, lite = block_specs(variant), VARIANTS[variant].lite
    _, levels, published, head = TABLE[variant]
    top = levels[max(levels)]
    without_top = published - (top * head + 2 * head) - (head * 1000 + 1000)
    assert parameters_of(specs, lite) == without_top
    if variant in ("b0", "lite4"):
        backbone = EfficientNet(variant=variant, drop_connect_rate=0.2, make_norm=NORM)
        with keras.StatelessScope(initialize_variables=False):  # drawing takes most of the time
            backbone.build((None, None, None, 3))
        found = sum(math.prod(variable.shape) for variable in backbone.trainable_variables)
        assert found == without_top


def test_round_filters():
    # To the nearest multiple of 8: 38.4 -> 40; 16 * 1.1 = 17.6 -> 16, over 90 % of it.
    assert [round_filters(32, 1.2), round_filters(16, 1.1), round_filters(24, 1.2)] == [40, 16, 32]


def test_levels_paths_and_drops():
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.2, make_norm=NORM)
    features = backbone(np.zeros((1, 64, 96, 3), np.float32))
    assert {level: tuple(f.shape) for level, f in features.items()} == {
        2: (1, 16, 24, 24),
        3: (1, 8, 12, 40),
        4: (1, 4, 6, 112),
        5: (1, 2, 3, 320),
    }
    paths = [variable.path for variable in backbone.variables]
    assert len(set(paths)) == len(paths)
    assert {"backbone/stem/conv/kernel", "backbone/stage3/block3/expand/kernel"} <= set(paths)
    assert "backbone/stage1/block0/expand/kernel" not in paths
    rates = [block.drop_rate for block in backbone.blocks]
    np.testing.assert_allclose(rates, 0.2 * np.arange(16) / 16)


def test_blocks_beyond_the_coarsest_level_are_left_out():
    """Of b0 blocks 0 to 4 are left at level 3, and rates are those of the whole network."""
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.2, max_level=3, make_norm=NORM)
    features = backbone(np.zeros((1, 64, 64, 3), np.float32), training=True)
    assert {level: f.shape[-1] for level, f in features.items()} == {2: 24, 3: 40}
    assert backbone.channels == {2: 24, 3: 40}
    np.testing.assert_allclose([b.drop_rate for b in backbone.blocks], 0.2 * np.arange(5) / 16)


def test_drop_connect_takes_whole_images_and_keeps_the_mean():
    drawn = np.array([0.0, 0.2, 0.25, 0.9], np.float32)
    outputs = np.array(drop_connect(np.ones((4, 2, 1, 3), np.float32), drawn, rate=0.25))
    np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[:, :1, :, :1], outputs.shape))
    np.testing.assert_allclose(outputs[:, 0, 0, 0], [0.0, 0.0, 4 / 3, 4 / 3])
    everything = drop_connect(np.ones((100, 1, 1, 1), np.float32), np.arange(100) / 100, rate=0.25)
    np.testing.assert_allclose(np.mean(everything), 1.0, rtol=1e-6)


def test_training_differs_only_by_drops_and_batch_statistics():
    # Statistics stay, or the second time would be rounded otherwise.
    still = partial(NORM, momentum=1.0)
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.0, make_norm=still)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    first, second = (backbone(images, training=True)[5] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    dropping = EfficientNet(variant="b0", drop_connect_rate=0.9, make_norm=still)
    first, second = (dropping(images, training=True)[5] for _ in range(2))
    assert np.any(np.array(first) != np.array(second))


def test_lite_has_no_squeeze_and_stays_below_six():
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, make_norm=NORM)
    backbone.build((None, None, None, 3))
    paths = [variable.path for variable in backbone.variables]
    assert not any("squeeze" in path or "excite" in path for path in paths)
    # The 296 tensors of the package on PyPI, less the top: 1x1 and its norm, classifier; and less
    # the counters of its 49 norms. One more is the seed.
    assert len(paths) == 296 - (1 + 4) - 2 - 48 + 1 - 1
    conv = backbone.blocks[1].depthwise
    conv.depthwise_kernel.assign(np.full((3, 3, 96, 1), 100.0))
    assert np.array(conv(np.ones((1, 4, 4, 96), np.float32))).max() == 6.0


@pytest.mark.parametrize(("style", "corner"), [("tensorflow", 27.0), ("torch", 12.0)])
def test_style_is_the_padding_of_strided_convolutions(style, corner):
    # A 3x3 kernel of ones over three channels of ones sees 3x3 pixels in the corner, or 2x2.
    backbone = EfficientNet(variant="lite0", drop_connect_rate=0.2, style=style, make_norm=NORM)
    backbone.build((None, None, None, 3))
    backbone.stem.kernel.assign(np.ones((3, 3, 3, 32)))
    outputs = np.array(backbone.stem.convolve(np.ones((1, 8, 8, 3), np.float32)))
    assert outputs.shape == (1, 4, 4, 32)
    assert outputs[0, 0, 0, 0] == corner
    assert outputs[0, 1, 1, 0] == 27.0


def test_frozen_norms_do_as_in_inference():
    backbone = EfficientNet(
        variant="lite0",
        drop_connect_rate=0.0,
        make_norm=partial(NORM, frozen=True),
    )
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    expected = np.array(backbone(images)[5])
    before = [v.numpy() for v in backbone.non_trainable_variables if "norm" in v.path]
    np.testing.assert_array_equal(backbone(images, training=True)[5], expected)
    after = [v.numpy() for v in backbone.non_trainable_variables if "norm" in v.path]
    assert len(before) == 4 * 48
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any("norm" in variable.path for variable in backbone.trainable_variables)


def test_unknown_variant():
    with pytest.raises(ValueError, match="variant is 'b9'; choose one of"):
        EfficientNet(variant="b9", drop_connect_rate=0.2, make_norm=NORM)
