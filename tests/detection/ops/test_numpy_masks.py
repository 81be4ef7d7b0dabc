"""Masks against pycocotools and numbers worked out by hand."""

import itertools
import tracemalloc
from math import floor
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import (
    check_rle,
    decode_rle,
    encode_part,
    encode_rle,
    paste_mask,
    paste_rle,
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


def test_runs_whose_sum_overflows_are_refused(overflowing_counts: str) -> None:
    runs = run_lengths(overflowing_counts)
    assert runs.min() == 0
    assert sum(runs.tolist()) == 2**64 + 256 * 256
    for counts in (overflowing_counts, overflowing_counts.encode()):
        with pytest.raises(ValueError, match="is not the mask of an image 256 wide and 256 high"):
            check_rle(counts, height=256, width=256)
        with pytest.raises(ValueError, match="is not the mask of an image 256 wide and 256 high"):
            decode_rle({"size": [256, 256], "counts": counts})


def test_long_counts_are_decoded_in_pieces() -> None:
    """A tenth of the memory that an array of all letters takes for each step."""
    mask = np.random.default_rng(0).random((1000, 900)) < 0.3
    rle = encode_rle(mask)
    assert len(rle["counts"]) > 1 << 18
    np.testing.assert_array_equal(decode_rle(rle), mask)
    counts = b"PP1" * 1_400_000  # numbers of three letters; a piece ends within one
    tracemalloc.start()
    runs = run_lengths(counts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert runs[:5].tolist() == [1024, 1024, 1024, 2048, 2048]
    assert runs[-1] == 1024 * 700_000
    assert peak < 80e6


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


def test_a_part_is_encoded_as_the_whole_image_would_be() -> None:
    random = np.random.default_rng(0)
    height, width = 12, 9
    places = [
        (0, 12, 0, 9),
        (0, 12, 3, 6),
        (5, 12, 2, 9),
        (0, 4, 0, 1),
        (3, 3, 4, 8),
        (11, 12, 8, 9),
    ]
    for top, bottom, left, right in places:
        for density in (0, 0.3, 0.9, 1):
            mask = np.zeros((height, width), bool)
            mask[top:bottom, left:right] = random.random((bottom - top, right - left)) < density
            part = mask[top:bottom, left:right]
            rle = encode_part(part, top=top, left=left, height=height, width=width)
            assert rle == encode_rle(mask)


@pytest.mark.parametrize("beyond", [0, 40])
def test_pasting_runs_equals_pasting_pixels(beyond: int) -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        corners = np.sort(random.uniform(-beyond, [48 + beyond, 64 + beyond], (2, 2)), axis=0)
        mask, size = random.random((28, 28)), {"height": 48, "width": 64}
        whole = encode_rle(paste_mask(mask, corners.ravel(), **size))
        assert paste_rle(mask, corners.ravel(), **size) == whole


def test_pasting_agrees_with_detectron2s_statement() -> None:
    """`paste_masks_in_image`: the centre (x + 0.5 - x0) / (x1 - x0) * 2 - 1 is sampled from the
    mask by `grid_sample` without aligned corners and with zeros outside, and is 1 from 0.5 on.

    torchvision enlarges the box to whole pixels first, so it differs by up to half a pixel.
    """
    random = np.random.default_rng(0)
    for _ in range(4):
        mask = random.random((14, 14))
        y0, x0, y1, x1 = np.concatenate([random.uniform(-3, 10, 2), random.uniform(14, 50, 2)])
        expected = np.zeros((40, 44))
        for y, x in np.ndindex(40, 44):
            shares = (y + 0.5 - y0) / (y1 - y0), (x + 0.5 - x0) / (x1 - x0)
            rows, columns = (((2 * share - 1 + 1) * 14 - 1) / 2 for share in shares)
            for i, j in itertools.product(*((floor(v), floor(v) + 1) for v in (rows, columns))):
                if 0 <= i < 14 and 0 <= j < 14:
                    expected[y, x] += (1 - abs(rows - i)) * (1 - abs(columns - j)) * mask[i, j]
        pasted = paste_mask(mask, np.array([y0, x0, y1, x1]), height=40, width=44)
        clear = np.abs(expected - 0.5) > 1e-6
        np.testing.assert_array_equal(pasted[clear], (expected >= 0.5)[clear])


def test_an_empty_box_has_no_pixel_and_its_mask_is_finite() -> None:
    assert not paste_mask(np.ones((4, 4)), np.array([2, 2, 2, 2.0]), height=4, width=4).any()
