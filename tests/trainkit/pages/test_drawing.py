"""Colours, grids and captions: values at known places, and sizes."""

import cv2
import numpy as np
import pytest

from tpudet.trainkit.pages.drawing import add_caption, class_colour, encode_png, image_grid

GRAY = np.full((120, 160, 3), 90, np.uint8)
RED, GREEN = (255, 0, 0), (0, 255, 0)


def test_neighbouring_classes_differ_in_colour() -> None:
    colours = np.array([class_colour(k) for k in range(1, 601)], float)
    assert np.abs(np.diff(colours, axis=0)).sum(axis=1).min() > 200


def test_numbers_must_agree() -> None:
    with pytest.raises(ValueError, match="0 images in 2 columns"):
        image_grid([], 2)


def test_rows_and_columns_of_a_grid_have_the_size_of_their_largest_image() -> None:
    images = [np.full((h, w, 3), v, np.uint8) for h, w, v in ((10, 30, 1), (20, 10, 2), (5, 5, 3))]
    grid = image_grid(images, columns=2)
    assert grid.shape == (20 + 4 + 5, 30 + 4 + 10, 3)
    for (y, x), value in {(0, 0): 1, (9, 29): 1, (0, 34): 2, (19, 43): 2, (24, 0): 3}.items():
        assert (grid[y, x] == value).all()
    assert (grid[10:20, :30] == grid[20, 0]).all()
    assert grid[20, 0].min() > 200  # what is empty is not dark
    assert image_grid(images[:1], columns=5).shape == (10, 30, 3)


def test_a_png_holds_the_image_and_captions_the_text() -> None:
    image = add_caption(np.tile(np.arange(160, dtype=np.uint8)[None, :, None], (60, 1, 3)), "text")
    decoded = cv2.imdecode(np.frombuffer(encode_png(image), np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decoded, image)
    assert image[:-60].min() < 100
    assert np.median(image[:-60]) > 200
