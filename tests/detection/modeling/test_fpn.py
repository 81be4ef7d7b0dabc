from functools import partial

import numpy as np
import pytest

from tpudet.detection.modeling.fpn import FPN, upsample_nearest
from tpudet.trainkit.backbones.batch_norm import BatchNorm

NORM = partial(BatchNorm, momentum=0.99, epsilon=1e-3)


def make_fpn(**settings):
    defaults = {
        "min_level": 3,
        "max_level": 7,
        "num_filters": 6,
        "separable": False,
        "coarse_levels": "convolution",
        "coarse_input": "pyramid",
        "coarse_relu": True,
        "symmetric_padding": False,
        "make_norm": NORM,
        "lateral_norms": False,
        "last_backbone_level": 5,
    }
    return FPN(**{**defaults, **settings})


def backbone_features(channels=(8, 12, 16, 20)):
    rng = np.random.default_rng(0)
    return {
        level: rng.normal(size=(1, 128 // 2**level, 192 // 2**level, n)).astype(np.float32)
        for level, n in zip((2, 3, 4, 5), channels, strict=True)
    }


@pytest.mark.parametrize("levels", [(3, 7), (3, 6), (2, 5), (2, 4), (4, 4), (5, 6)])
def test_levels_and_shapes(levels):
    neck = make_fpn(min_level=levels[0], max_level=levels[1])
    features = backbone_features()
    neck.build({level: f.shape for level, f in features.items()})
    found = {level: tuple(f.shape) for level, f in neck(features).items()}
    # "same" padding: an odd side halves upwards.
    assert found == {
        level: (1, -(-128 // 2**level), -(-192 // 2**level), 6)
        for level in range(levels[0], levels[1] + 1)
    }
    paths = {variable.path for variable in neck.variables}
    assert len(paths) == len(neck.variables)
    assert f"neck/conv{levels[1]}/kernel" in paths


def test_top_down_sum_and_coarse_levels_by_hand():
    # Laterals of ones and centre-only convolutions make every number a sum of inputs.
    neck = make_fpn(min_level=4, num_filters=1, make_norm=partial(NORM, epsilon=0.0))
    features = {
        4: np.full((1, 4, 4, 1), 3.0, np.float32),
        5: np.full((1, 2, 2, 1), -5.0, np.float32),
    }
    neck.build({level: f.shape for level, f in features.items()})
    for lateral in neck.laterals.values():
        lateral.kernel.assign(np.ones((1, 1, 1, 1)))
    for level, conv in neck.convs.items():
        kernel = np.zeros((3, 3, 1, 1))
        # A strided convolution pads at the end only: its first place looks at the first pixel.
        kernel[(1, 1) if level < 7 else (0, 0)] = 1.0
        conv.kernel.assign(kernel)
    found = neck(features)
    np.testing.assert_allclose(found[4], np.full((1, 4, 4, 1), -2.0), rtol=1e-6)
    np.testing.assert_allclose(found[5], np.full((1, 2, 2, 1), -5.0), rtol=1e-6)
    np.testing.assert_allclose(found[6], np.full((1, 1, 1, 1), -5.0), rtol=1e-6)
    np.testing.assert_allclose(found[7], np.zeros((1, 1, 1, 1)))  # of the ReLU of level 6


def test_without_convolutions_a_coarse_level_is_every_second_pixel_of_the_level_before():
    neck = make_fpn(min_level=2, max_level=7, coarse_levels="subsample", make_norm=None)
    neck.build({level: f.shape for level, f in backbone_features().items()})
    found = {level: np.array(f) for level, f in neck(backbone_features()).items()}
    assert list(found) == [2, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(found[6], found[5][:, ::2, ::2])
    np.testing.assert_array_equal(found[7], found[5][:, ::4, ::4])
    names = {variable.path.split("/")[1] for variable in neck.variables}
    assert names == {f"{kind}{level}" for kind in ("lateral", "conv") for level in (2, 3, 4, 5)}


def test_level_6_of_the_backbone_and_padding_on_all_sides_by_hand():
    # A kernel of ones over a map of ones counts the pixels it sees.
    features = {5: np.ones((1, 4, 4, 2), np.float32)}
    for symmetric, seen in ((False, [[9, 6], [6, 4]]), (True, [[4, 6], [6, 9]])):
        neck = make_fpn(
            min_level=5,
            max_level=6,
            num_filters=1,
            coarse_input="backbone",
            symmetric_padding=symmetric,
            make_norm=None,
        )
        neck.build({5: (None, None, None, 2)})
        neck.convs[6].kernel.assign(np.ones((3, 3, 2, 1)))
        # Twice, because it has two channels, whatever the pyramid's level 5 is.
        expected = 2 * np.array(seen).reshape(1, 2, 2, 1)
        np.testing.assert_allclose(neck(features)[6], expected)


def test_without_relu_level_7_is_convolved_from_level_6_itself():
    features = {5: np.full((1, 2, 2, 1), -5.0, np.float32)}
    for relu, expected in ((True, 0.0), (False, -5.0)):
        neck = make_fpn(min_level=5, num_filters=1, coarse_relu=relu, make_norm=None)
        neck.build({5: features[5].shape})
        neck.laterals[5].kernel.assign(np.ones((1, 1, 1, 1)))
        for level, conv in neck.convs.items():
            place = 0 if level == 6 else 4  # the centre; two pixels are padded at their end only
            conv.kernel.assign(np.eye(9)[place].reshape(3, 3, 1, 1))
        np.testing.assert_allclose(neck(features)[7], np.full((1, 1, 1, 1), expected))


def test_norms_of_laterals_take_the_place_of_all_biases():
    neck = make_fpn(min_level=4, max_level=5, num_filters=1, lateral_norms=True)
    features = {
        4: np.full((1, 4, 4, 1), 3.0, np.float32),
        5: np.full((1, 2, 2, 1), -5.0, np.float32),
    }
    neck.build({level: f.shape for level, f in features.items()})
    assert not [variable.path for variable in neck.variables if variable.path.endswith("bias")]
    for level in (4, 5):
        neck.laterals[level].kernel.assign(np.ones((1, 1, 1, 1)))
        neck.convs[level].kernel.assign(np.eye(9)[4].reshape(3, 3, 1, 1))  # the centre only
        neck.lateral_norms[level].moving_variance.assign([1.0 - 1e-3])
        neck.norms[level].moving_variance.assign([1.0 - 1e-3])
    neck.lateral_norms[5].moving_mean.assign([-2.0])
    neck.lateral_norms[4].beta.assign([10.0])
    neck.norms[4].gamma.assign([2.0])
    found = neck(features)
    np.testing.assert_allclose(found[5], np.full((1, 2, 2, 1), -3.0), rtol=1e-6)
    np.testing.assert_allclose(found[4], np.full((1, 4, 4, 1), 2 * (13.0 - 3.0)), rtol=1e-6)


def test_every_convolution_can_be_separable():
    kernels = {}
    for separable in (False, True):
        neck = make_fpn(separable=separable)
        neck.build({level: f.shape for level, f in backbone_features().items()})
        assert neck(backbone_features())[3].shape == (1, 16, 24, 6)
        kernels[separable] = [v for v in neck.variables if v.path.endswith("depthwise_kernel")]
    assert len(kernels[False]) == 0
    assert len(kernels[True]) == 3 + 5  # laterals, and one per level


def test_frozen_statistics_stay_in_training():
    for frozen, expected in ((True, 0), (False, 5)):
        neck = make_fpn(make_norm=partial(NORM, frozen=frozen))
        neck.build({level: f.shape for level, f in backbone_features().items()})
        neck(backbone_features(), training=True)
        moved = [v for v in neck.variables if "moving_mean" in v.path and np.any(v.numpy())]
        assert len(moved) == expected


def test_upsampling():
    features = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
    expected = [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    np.testing.assert_array_equal(np.array(upsample_nearest(features))[0, ..., 0], expected)
    larger = np.array(upsample_nearest(features, 4))[0, ..., 0]
    np.testing.assert_array_equal(larger, np.kron([[1, 2], [3, 4]], np.ones((4, 4))))


def test_levels_that_no_backbone_has():
    with pytest.raises(ValueError, match="min_level=6 and max_level=7; min_level must be 2 to 5"):
        make_fpn(min_level=6)
