import numpy as np
import pytest

from tpudet.detection.ops.anchors import anchors_for_canvas, locations_per_level


def anchors(canvas, **changes):
    settings = {
        "strides": (8, 16, 32, 64, 128),
        "num_scales": 3,
        "aspect_ratios": (1.0, 2.0, 0.5),
        "anchor_size": 4.0,
        "sides": (),
        "layout": "centered",
    }
    return anchors_for_canvas(canvas_size=canvas, **{**settings, **changes})


def test_number_at_640():
    # 9 at each of 80*80 + 40*40 + 20*20 + 10*10 + 5*5 places.
    found = anchors((640, 640))
    assert found.shape == (76725, 4)
    assert found.dtype == np.float32


def test_first_and_second_place_by_hand():
    found = anchors((128, 128), num_scales=2, aspect_ratios=(1.0, 4.0), anchor_size=4.0)
    # Level 3: stride 8, centre (4, 4), side 32; ratio 4 is twice as wide and half as high.
    np.testing.assert_allclose(found[0], [-12, -12, 20, 20])
    np.testing.assert_allclose(found[1], [-4, -28, 12, 36])
    side = 32 * 2**0.5
    np.testing.assert_allclose(found[2], [4 - side / 2, 4 - side / 2, 4 + side / 2, 4 + side / 2])
    # Then the next column of the first row.
    np.testing.assert_allclose(found[4], [-12, -4, 20, 28])


def test_rows_come_before_columns_and_levels_before_rows():
    found = anchors((64, 128), strides=(8, 16, 32, 64), num_scales=1, aspect_ratios=(1.0,))
    assert len(found) == 8 * 16 + 4 * 8 + 2 * 4 + 1 * 2
    centers = (found[:, :2] + found[:, 2:]) / 2
    np.testing.assert_allclose(centers[16], [12, 4])  # second row of level 3
    np.testing.assert_allclose(centers[-2:], [[32, 32], [32, 96]])  # level 6
    np.testing.assert_allclose(found[-1, 2] - found[-1, 0], 4 * 64)


def test_canvas_that_the_backbone_does_not_divide():
    with pytest.raises(ValueError, match="640x600 pixels; both sides must be multiples of 32"):
        anchors((640, 600))


@pytest.mark.parametrize("layout", ["centered", "torchvision"])
def test_odd_sides_are_halved_upwards(layout):
    # MLPerf's number: 100, 50, 25, 13 and 7 places along each side.
    found = anchors((800, 800), layout=layout)
    assert len(found) == 9 * (100**2 + 50**2 + 25**2 + 13**2 + 7**2) == 120087
    strides = (8, 16, 32, 64, 128)
    assert locations_per_level(canvas_size=(800, 800), strides=strides) == (
        10000,
        2500,
        625,
        169,
        49,
    )


def test_around_corners_anchors_lie_half_a_cell_before_those_around_centres():
    found = anchors((128, 128), num_scales=2)
    corner = anchors((128, 128), num_scales=2, layout="corner")
    np.testing.assert_allclose(corner[: 16 * 16 * 6], found[: 16 * 16 * 6] - 4, atol=1e-4)
    np.testing.assert_allclose(corner[-6:], found[-6:] - 64, atol=1e-4)  # of level 7


def test_the_layout_of_torchvision_by_hand():
    found = anchors((800, 800), aspect_ratios=(2.0, 1.0, 0.5), layout="torchvision")
    # Sides 32, int(40.3) and int(50.8) around 0; of twice the width, 32 / sqrt(2) / 2 = 11.3 and
    # 32 * sqrt(2) / 2 = 22.6. Scales come before ratios.
    np.testing.assert_array_equal(found[0], [-11, -23, 11, 23])
    np.testing.assert_array_equal(found[3:6, 3], [16, 20, 25])
    # The next place of level 3 is 8 pixels to the right.
    np.testing.assert_array_equal(found[9 + 3], [-16, -8, 16, 24])
    # On level 6 places are 800 // 13 = 61 pixels apart, on level 7 800 // 7 = 114.
    np.testing.assert_array_equal(found[-49 * 9 - 9 + 3], [12 * 61 - 128] * 2 + [12 * 61 + 128] * 2)
    np.testing.assert_array_equal(found[-9 + 3], [6 * 114 - 256] * 2 + [6 * 114 + 256] * 2)


def test_sides_in_pixels_are_those_of_every_level_and_two_levels_may_have_one_stride():
    found = anchors((64, 96), strides=(32, 32, 64), sides=(16.0, 48.0), aspect_ratios=(1.0, 4.0))
    places = locations_per_level(canvas_size=(64, 96), strides=(32, 32, 64))
    assert places == (2 * 3, 2 * 3, 1 * 2)
    assert len(found) == sum(places) * 2 * 2
    np.testing.assert_array_equal(found[:24], found[24:48])
    # Around (16, 16) and, of stride 64, around (32, 32): 16, half as high and twice as wide, 48.
    np.testing.assert_array_equal(found[0], [8, 8, 24, 24])
    np.testing.assert_array_equal(found[1], [12, 0, 20, 32])
    np.testing.assert_array_equal(found[2], [-8, -8, 40, 40])
    np.testing.assert_array_equal(found[48], [24, 24, 40, 40])
