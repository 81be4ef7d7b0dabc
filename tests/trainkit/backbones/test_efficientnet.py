import math

import numpy as np
import pytest

from trainkit.backbones.efficientnet import (
    VARIANTS,
    EfficientNet,
    block_specs,
    drop_connect,
    endpoints,
    round_filters,
)

# Blocks, levels 2 to 5 as {block: channels}, published parameters, width of the 1x1 before the
# classifier, which the backbone does not have.
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


@pytest.mark.parametrize("variant", ["b0", "b3", "b8"])
def test_number_of_parameters(variant):
    backbone = EfficientNet(variant=variant)
    backbone.build((None, None, None, 3))
    _, levels, published, head = TABLE[variant]
    top = levels[max(levels)]
    without_top = published - (top * head + 2 * head) - (head * 1000 + 1000)
    found = sum(math.prod(variable.shape) for variable in backbone.trainable_variables)
    assert found == without_top


def test_round_filters():
    # To the nearest multiple of 8: 38.4 -> 40; 16 * 1.1 = 17.6 -> 16, over 90 % of it.
    assert [round_filters(32, 1.2), round_filters(16, 1.1), round_filters(24, 1.2)] == [40, 16, 32]


def test_levels_paths_and_drops():
    backbone = EfficientNet(variant="b0")
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


def test_drop_connect_takes_whole_images_and_keeps_the_mean():
    drawn = np.array([0.0, 0.2, 0.25, 0.9], np.float32)
    outputs = np.array(drop_connect(np.ones((4, 2, 1, 3), np.float32), drawn, rate=0.25))
    np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[:, :1, :, :1], outputs.shape))
    np.testing.assert_allclose(outputs[:, 0, 0, 0], [0.0, 0.0, 4 / 3, 4 / 3])
    everything = drop_connect(np.ones((100, 1, 1, 1), np.float32), np.arange(100) / 100, rate=0.25)
    np.testing.assert_allclose(np.mean(everything), 1.0, rtol=1e-6)


def test_training_differs_only_by_drops_and_batch_statistics():
    backbone = EfficientNet(variant="b0", drop_connect_rate=0.0)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    first, second = (backbone(images, training=True)[5] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    dropping = EfficientNet(variant="b0", drop_connect_rate=0.9)
    first, second = (dropping(images, training=True)[5] for _ in range(2))
    assert np.any(np.array(first) != np.array(second))


def test_unknown_variant():
    with pytest.raises(ValueError, match="variant is 'b9'; choose one of"):
        EfficientNet(variant="b9")
