"""Masks against pycocotools and numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import (
    check_rle,
    decode_rle,
    encode_rle,
    paste_mask,
    run_lengths,
)


def test_decoding_gives_back_what_was_encoded_and_so_does_pycocotools() -> None:
    random = np.random.default_rng(0)
    for shape in ((48, 64), (1, 1), (7, 200)):
        for density in (0, 0.02, 0.5, 1):
            mask = random.random(shape) < density
            rle = encode_rle(mask)
            np.testing.assert_array_equal(decode_rle(rle), mask)
            encoded: Any = {**rle, "counts": rle["counts"].encode()}
            assert coco_mask.area(encoded) == mask.sum()
            check_rle(rle["counts"], height=shape[0], width=shape[1])
            with pytest.raises(ValueError, match="is not the mask of an image"):
                check_rle(rle["counts"], height=shape[0], width=shape[1] + 1)


@pytest.mark.parametrize("counts", ["", "P", "zz\x7f", b"P" * 9 + b"0"])
def test_damaged_counts_are_refused(counts: bytes | str) -> None:
    with pytest.raises(ValueError, match="is not a COCO run-length encoding"):
        run_lengths(counts)


def test_a_full_mask_fills_its_box() -> None:
    pasted = paste_mask(np.ones((14, 14)), np.array([2, 3, 6, 10.0]), height=9, width=12)
    expected = np.zeros((9, 12), bool)
    expected[2:6, 3:10] = True
    np.testing.assert_array_equal(pasted, expected)


def test_half_a_mask_fills_half_its_box_also_beyond_the_image() -> None:
    mask = np.zeros((8, 8))
    mask[:, 4:] = 1
    pasted = paste_mask(mask, np.array([-4, -8, 4, 8.0]), height=6, width=6)
    expected = np.zeros((6, 6), bool)
    expected[:4] = True  # the right half begins at x 0
    np.testing.assert_array_equal(pasted, expected)


def test_an_empty_box_has_no_pixel_and_its_mask_is_finite() -> None:
    assert not paste_mask(np.ones((4, 4)), np.array([2, 2, 2, 2.0]), height=4, width=4).any()
