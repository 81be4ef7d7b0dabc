import numpy as np
import pytest

from tpudet.detection.ops.anchors import anchors_for_canvas


def anchors(canvas, **changes):
    settings = {
        "min_level": 3,
        "max_level": 7,
        "num_scales": 3,
        "aspect_ratios": (1.0, 2.0, 0.5),
        "anchor_size": 4.0,
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
    found = anchors((64, 128), max_level=6, num_scales=1, aspect_ratios=(1.0,))
    assert len(found) == 8 * 16 + 4 * 8 + 2 * 4 + 1 * 2
    centers = (found[:, :2] + found[:, 2:]) / 2
    np.testing.assert_allclose(centers[16], [12, 4])  # second row of level 3
    np.testing.assert_allclose(centers[-2:], [[32, 32], [32, 96]])  # level 6
    np.testing.assert_allclose(found[-1, 2] - found[-1, 0], 4 * 64)


def test_canvas_that_the_coarsest_level_does_not_divide():
    with pytest.raises(ValueError, match="640x600 pixels; both sides must be multiples of 128"):
        anchors((640, 600))
