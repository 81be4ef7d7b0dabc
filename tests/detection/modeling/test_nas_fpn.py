import functools

import numpy as np
import pytest

from tpudet.detection.modeling.nas_fpn import NASFPN, resample
from tpudet.trainkit.backbones.batch_norm import BatchNorm
from tpudet.trainkit.backbones.drop_block import DropBlock

LEVELS = range(3, 8)


def build(channels=(2, 2, 2), **settings):
    exact = functools.partial(BatchNorm, epsilon=0.0, momentum=0.99)
    neck = NASFPN(
        **{
            "min_level": 3,
            "max_level": 7,
            "num_filters": 2,
            "num_repeats": 1,
            "separable": False,
            "drop_block": None,
            "seed": 0,
            "make_norm": exact,
            **settings,
        }
    )
    neck.build({level: (None, None, None, n) for level, n in zip((3, 4, 5), channels, strict=True)})
    return neck


def backbone_features(channels=(2, 2, 2), seed=0):
    rng = np.random.default_rng(seed)
    return {
        level: rng.normal(size=(2, 128 // 2**level, 256 // 2**level, n)).astype(np.float32)
        for level, n in zip((3, 4, 5), channels, strict=True)
    }


def pass_through(cell):
    """Every convolution of the cell becomes the identity."""
    for conv in cell.convs:
        kernel = np.zeros(conv.kernel.shape, np.float32)
        kernel[1, 1] = np.eye(2)
        conv.kernel.assign(kernel)


def test_a_cell_by_hand():
    """Attention to a map whose largest value is 0 takes half of the finer one."""
    neck = build()
    pass_through(neck.cells[0])
    inputs = {3: -3.0, 4: 2.0, 5: -3.0, 6: 0.0, 7: 2.5}
    maps = [
        np.full((1, 256 // 2**level, 128 // 2**level, 2), value, np.float32)
        for level, value in inputs.items()
    ]
    found = neck.cells[0](maps)
    # Node 5: 0 + 2/2 = 1. Node 6: 2 + 1 = 3. Node 7, level 3: -3 + 3 = 0. Node 8, level 4: 3 + 0.
    # Node 9, level 5: 3 + 0 * sigmoid(3) + the unused -3 = 0. Node 10, level 7: 0 + 3/2 + the
    # unused 2.5 = 4. Node 11, level 6: 4 + 0 * sigmoid(4).
    for level, value, output in zip(LEVELS, (0.0, 3.0, 0.0, 4.0, 4.0), found, strict=True):
        shape = (1, 256 // 2**level, 128 // 2**level, 2)
        np.testing.assert_allclose(output, np.full(shape, value), atol=1e-6)


def pooled(x, factor):
    batch, height, width, channels = x.shape
    blocks = x.reshape(batch, height // factor, factor, width // factor, factor, channels)
    return blocks.max(axis=(2, 4))


def enlarged(x, factor):
    return np.kron(x, np.ones((1, factor, factor, 1)))


def attention(fine, coarse):
    return coarse + fine / (1 + np.exp(-coarse.max(axis=(1, 2), keepdims=True)))


def numpy_cell(maps):
    """The cell of arXiv 1904.07392, figure 6, map by map."""
    p3, p4, p5, p6, p7 = maps
    relu = functools.partial(np.maximum, 0.0)
    n5 = relu(attention(p4, enlarged(p6, 4)))
    n6 = relu(p4 + n5)
    n7 = relu(p3 + enlarged(n6, 2))
    n8 = relu(n6 + pooled(n7, 2))
    n9 = relu(attention(pooled(n7, 4), pooled(n8, 2)) + p5)
    n10 = relu(attention(pooled(n6, 8), pooled(n9, 4)) + p7)
    n11 = relu(attention(pooled(n9, 2), enlarged(n10, 2)))
    return n7, n8, n9, n11, n10


def test_cells_equal_a_statement_in_numpy():
    neck = build(num_repeats=2)
    for cell in neck.cells:
        pass_through(cell)
    features = backbone_features()
    level6 = pooled(features[5], 2)
    maps = [*features.values(), level6, pooled(level6, 2)]
    for _ in range(2):
        maps = numpy_cell(maps)
    found = neck(features)
    assert list(found) == list(LEVELS)
    for level, expected in zip(LEVELS, maps, strict=True):
        np.testing.assert_allclose(found[level], expected, rtol=1e-5, atol=1e-5)


def test_levels_are_brought_to_each_other():
    pixels = np.arange(4.0).reshape(1, 2, 2, 1)
    np.testing.assert_array_equal(resample(pixels, 4, 4), pixels)
    np.testing.assert_array_equal(resample(pixels, 4, 5), [[[[3.0]]]])
    up = np.array(resample(pixels, 5, 3))[0, ..., 0]
    np.testing.assert_array_equal(up, np.kron([[0, 1], [2, 3]], np.ones((4, 4))))


@pytest.mark.parametrize("separable", [False, True])
def test_laterals_only_where_channels_differ(separable):
    neck = build((6, 4, 8), num_filters=4, num_repeats=2, separable=separable)
    found = neck(backbone_features((6, 4, 8)))
    for level in LEVELS:
        assert found[level].shape == (2, 128 // 2**level, 256 // 2**level, 4)
    paths = {variable.path for variable in neck.variables}
    assert len(paths) == len(neck.variables)
    assert {path for path in paths if "lateral" in path and path.endswith("kernel")} == {
        "neck/lateral3/kernel",
        "neck/lateral5/kernel",
    }
    assert "neck/cell1/node11/kernel" in paths
    assert ("neck/cell1/node11/depthwise_kernel" in paths) == separable


def test_frozen_statistics_stay_in_training():
    features = backbone_features()
    neck = build(make_norm=functools.partial(BatchNorm, frozen=True, momentum=0.99, epsilon=1e-3))
    before = {v.path: v.numpy() for v in neck.variables}
    for one, other in zip(
        neck(features, training=True).values(), neck(features).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    for variable in neck.variables:
        np.testing.assert_array_equal(variable, before[variable.path], err_msg=variable.path)
    neck = build()
    neck(features, training=True)
    moved = [v for v in neck.variables if "moving_mean" in v.path and np.any(v.numpy())]
    assert len(moved) == 7


def test_drop_block_follows_every_node_in_training_alone():
    drop_block = functools.partial(DropBlock, keep_prob=0.5, size=1, schedule_steps=0)
    features = backbone_features()
    neck = build(num_repeats=2, drop_block=drop_block, seed=10)
    found = neck(features, training=True)
    for level in (3, 4, 5):  # the others have 8 pixels a channel and less
        share = np.mean(np.array(found[level]) == 0.0)
        assert 0.3 < share < 0.7, level
    assert not np.any(np.array(neck(features)[3]) == 0.0)
    states = {tuple(v.numpy()) for v in neck.variables if "drop_block" in v.path and v.shape}
    assert len(states) == 2 * 7  # no two draw the same squares
    neck.cells[1].trainable = False  # in training its norms and drops are those of inference
    cell, maps = neck.cells[1], list(found.values())
    for frozen, inference in zip(cell(maps, training=True), cell(maps), strict=True):
        np.testing.assert_array_equal(frozen, inference)


def test_other_levels_are_refused():
    with pytest.raises(ValueError, match="min_level=3 and max_level=7, got 4 and 7"):
        build(min_level=4)
