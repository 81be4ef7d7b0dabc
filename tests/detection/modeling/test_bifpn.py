from functools import partial

import numpy as np
import pytest

from tpudet.detection.modeling.bifpn import BiFPN, FusionNode, cell_nodes, fusion_shares
from tpudet.trainkit.backbones.batch_norm import BatchNorm

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def build(channels=(2, 2, 2), **settings):
    exact = partial(NORM, epsilon=0.0)
    neck = BiFPN(
        **{
            "min_level": 3,
            "max_level": 7,
            "num_filters": 2,
            "num_repeats": 1,
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


def pass_through(conv):
    """A separable convolution, or a 1x1 one, becomes the identity."""
    if conv.kind == "separable":
        centre = np.zeros(conv.depthwise_kernel.shape, np.float32)
        centre[1, 1] = 1.0
        conv.depthwise_kernel.assign(centre)
    conv.kernel.assign(np.eye(conv.kernel.shape[-1])[None, None])


def test_nodes_of_figure_2():
    assert cell_nodes(range(3, 8)) == (
        FusionNode(6, (3, 4)),
        FusionNode(5, (2, 5)),
        FusionNode(4, (1, 6)),
        FusionNode(3, (0, 7)),
        FusionNode(4, (1, 7, 8)),
        FusionNode(5, (2, 6, 9)),
        FusionNode(6, (3, 5, 10)),
        FusionNode(7, (4, 11)),
    )
    assert cell_nodes(range(4, 6)) == (FusionNode(4, (0, 1)), FusionNode(5, (1, 2)))


def test_shares_by_hand():
    np.testing.assert_allclose(
        fusion_shares(np.array([1.0, 3.0, -2.0])), [1 / 4.0001, 3 / 4.0001, 0.0], rtol=1e-6
    )
    np.testing.assert_array_equal(fusion_shares(np.array([-1.0, 0.0])), [0.0, 0.0])


def test_a_fusion_by_hand():
    """Of 1 with weight 3 and 5 with weight 1: 8 / 4.0001, and SiLU of 2 is 2 / (1 + e^-2)."""
    neck = build(min_level=4, max_level=5)
    fusion = neck.cells[0][0]
    pass_through(fusion.conv)
    fusion.fusion_weights.assign([3.0, 1.0])
    fine, coarse = np.full((1, 4, 6, 2), 1.0), np.full((1, 2, 3, 2), 5.0)
    found = fusion([fine.astype(np.float32), coarse.astype(np.float32)])
    fused = 8 / 4.0001
    np.testing.assert_allclose(
        found, np.full((1, 4, 6, 2), fused / (1 + np.exp(-fused))), rtol=1e-6
    )
    np.testing.assert_allclose(found, np.full((1, 4, 6, 2), 1.7616), rtol=1e-4)


def pooled(x):
    """The largest of 3x3 pixels from every second one; the last row and column lack one."""
    x = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    x = np.maximum(np.maximum(x[:, :-1:2], x[:, 1::2]), x[:, 2::2])
    return np.maximum(np.maximum(x[:, :, :-1:2], x[:, :, 1::2]), x[:, :, 2::2])


def doubled(x):
    return np.kron(x, np.ones((1, 2, 2, 1)))


def numpy_cell(weights, maps):
    """Section 3.3 of arXiv 1911.09070, map by map."""
    weights = iter(weights)
    p3, p4, p5, p6, p7 = maps

    def fuse(*maps):
        shares = np.maximum(next(weights), 0.0)
        fused = sum(share * features for share, features in zip(shares, maps, strict=True)) / (
            shares.sum() + 1e-4
        )
        return fused / (1 + np.exp(-fused))

    down6 = fuse(p6, doubled(p7))
    down5 = fuse(p5, doubled(down6))
    down4 = fuse(p4, doubled(down5))
    out3 = fuse(p3, doubled(down4))
    out4 = fuse(p4, down4, pooled(out3))
    out5 = fuse(p5, down5, pooled(out4))
    out6 = fuse(p6, down6, pooled(out5))
    out7 = fuse(p7, pooled(out6))
    return out3, out4, out5, out6, out7


def test_cells_equal_a_statement_in_numpy():
    neck = build(num_repeats=2)
    rng = np.random.default_rng(4)
    for fusion in (*neck.cells[0], *neck.cells[1]):
        pass_through(fusion.conv)
        fusion.fusion_weights.assign(rng.uniform(-0.5, 2.0, fusion.fusion_weights.shape))
    features = backbone_features()
    level6 = pooled(features[5])
    maps = [*features.values(), level6, pooled(level6)]
    for cell in neck.cells:
        weights = [fusion.fusion_weights.numpy() for fusion in cell]
        maps = numpy_cell(weights, maps)
    found = neck(features)
    assert list(found) == [3, 4, 5, 6, 7]
    for level, expected in zip(found, maps, strict=True):
        np.testing.assert_allclose(found[level], expected, rtol=1e-5, atol=1e-5)


def test_channels_are_matched_once_per_use_of_a_level():
    neck = build((6, 4, 8), num_filters=4, num_repeats=2)
    found = neck(backbone_features((6, 4, 8)))
    for level in (3, 4, 5, 6, 7):
        assert found[level].shape == (2, 128 // 2**level, 256 // 2**level, 4)
    paths = {variable.path for variable in neck.variables}
    assert len(paths) == len(neck.variables)
    # Level 3 is used by node 8, level 5 by nodes 6 and 10; level 4 has 4 channels already.
    assert {path for path in paths if "lateral" in path and path.endswith("kernel")} == {
        "neck/lateral6/kernel",
        *(f"neck/cell0/node{node}/lateral0/kernel" for node in (6, 8, 10)),
    }
    assert "neck/cell1/node12/fusion_weights" in paths


@pytest.mark.parametrize("levels", [(3, 6), (2, 5), (4, 5), (5, 7)])
def test_other_levels(levels):
    neck = BiFPN(
        min_level=levels[0],
        max_level=levels[1],
        num_filters=4,
        num_repeats=1,
        make_norm=NORM,
    )
    features = {
        level: np.ones((1, 128 // 2**level, 256 // 2**level, 3), np.float32)
        for level in (2, 3, 4, 5)
    }
    neck.build({level: f.shape for level, f in features.items()})
    assert {level: tuple(f.shape) for level, f in neck(features).items()} == {
        level: (1, 128 // 2**level, 256 // 2**level, 4) for level in range(levels[0], levels[1] + 1)
    }


def test_frozen_statistics_stay_in_training():
    features = backbone_features((6, 4, 8))
    for frozen, expected in ((True, 0), (False, 8 + 6)):
        neck = build((6, 4, 8), make_norm=partial(NORM, frozen=frozen))
        neck(features, training=True)
        moved = [v for v in neck.variables if "moving_mean" in v.path and np.any(v.numpy())]
        assert len(moved) == expected


@pytest.mark.parametrize("levels", [(5, 5), (6, 7), (1, 4)])
def test_levels_that_cannot_be(levels):
    with pytest.raises(ValueError, match=f"min_level={levels[0]} and max_level={levels[1]}"):
        build(min_level=levels[0], max_level=levels[1])
