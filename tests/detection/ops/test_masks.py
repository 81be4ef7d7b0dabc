import math
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.ops.masks import crop_masks, mask_targets
from tpudet.detection.ops.numpy_masks import encode_rle, paste_mask

SIZE = (60, 96)


def draw_blob(rng):
    """A smooth object that fills a good part of the canvas."""
    rows, columns = np.meshgrid(np.arange(SIZE[0]), np.arange(SIZE[1]), indexing="ij")
    y, x = rng.uniform(20, 40), rng.uniform(30, 60)
    angles = np.arctan2(rows + 0.5 - y, columns + 0.5 - x)
    radius = 18 + 4 * np.sin(3 * angles + rng.uniform(0, 6))
    return np.hypot(rows + 0.5 - y, columns + 0.5 - x) < radius


def pack(masks):
    return np.packbits(masks, axis=-1)


def tight_box(mask):
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1], np.float32)


def plain_crop(mask, box, size):
    """The definition, cell by cell, where the centre of the first pixel is 0.5."""
    height, width = mask.shape
    cells = np.zeros((size, size))
    for row, column in np.ndindex(size, size):
        y = box[0] + (box[2] - box[0]) * (row + 0.5) / size - 0.5
        x = box[1] + (box[3] - box[1]) * (column + 0.5) / size - 0.5
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        top, left = math.floor(y), math.floor(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        upper = mask[top, left] * (1 - (x - left)) + mask[top, right] * (x - left)
        lower = mask[bottom, left] * (1 - (x - left)) + mask[bottom, right] * (x - left)
        cells[row, column] = upper * (1 - (y - top)) + lower * (y - top)
    return cells


def test_crops_equal_the_plain_statement_at_any_fraction_of_a_pixel():
    rng = np.random.default_rng(0)
    masks = (rng.random((2, 3, *SIZE)) < 0.5).astype(np.uint8)
    tops = rng.uniform(-5, 50, (2, 8, 2))
    boxes = np.concatenate([tops, tops + rng.uniform(0, 45, (2, 8, 2))], axis=-1)
    boxes = boxes.astype(np.float32)
    instances = rng.integers(0, 3, (2, 8)).astype(np.int32)
    crops = np.array(crop_masks(pack(masks), boxes, instances, size=9))
    targets = np.array(mask_targets(pack(masks), boxes, instances, size=9))
    for image, number in np.ndindex(2, 8):
        expected = plain_crop(masks[image, instances[image, number]], boxes[image, number], 9)
        np.testing.assert_allclose(crops[image, number], expected, atol=1e-4)
        clear = np.abs(expected - 0.5) > 1e-3
        np.testing.assert_array_equal(
            targets[image, number][clear], (expected >= 0.5)[clear].astype(np.float32)
        )


def test_half_a_box_by_hand():
    mask = np.zeros((1, 1, 8, 8), np.uint8)
    mask[..., 4:] = 1
    whole = np.array([[[0, 0, 8, 8]]], np.float32)
    targets = np.array(mask_targets(pack(mask), whole, np.zeros((1, 1), int), size=4))[0, 0]
    np.testing.assert_array_equal(targets, [[0, 0, 1, 1]] * 4)
    # A quarter of a pixel further left, the centre of the second cell is still outside.
    crops = np.array(crop_masks(pack(mask), whole - 0.25, np.zeros((1, 1), int), size=8))[0, 0]
    np.testing.assert_allclose(crops[0], [0, 0, 0, 0, 0.75, 1, 1, 1])


def test_an_instance_without_pixels_and_a_box_without_area_give_finite_cells():
    masks = np.zeros((1, 2, *SIZE), np.uint8)
    boxes = np.array([[[3, 3, 3, 3], [0, 0, 20, 20]]], np.float32)
    np.testing.assert_array_equal(
        mask_targets(pack(masks), boxes, np.zeros((1, 2), int), size=5), 0.0
    )
    masks[:] = 1
    np.testing.assert_array_equal(
        mask_targets(pack(masks), boxes, np.zeros((1, 2), int), size=5), 1.0
    )


@pytest.mark.parametrize("shift", [0.0, 0.3, 0.5, 0.8])
def test_pasting_is_the_inverse_of_cutting(shift):
    """By pycocotools' IoU of the encoded masks, also where boxes lie between pixels."""
    rng = np.random.default_rng(0)
    drifts = []
    for _ in range(20):
        mask = draw_blob(rng)
        box = tight_box(mask) + np.array([-shift, shift - 1, shift, 1], np.float32)
        instance = np.zeros((1, 1), int)
        target = mask_targets(pack(mask)[None, None], box[None, None], instance, size=28)
        pasted = paste_mask(np.array(target)[0, 0], box, height=SIZE[0], width=SIZE[1])
        encoded = [encode_rle(value) for value in (pasted, mask)]
        overlap: Any = coco_mask.iou(encoded[:1], encoded[1:], [0])
        assert float(overlap[0, 0]) > 0.95
        centers = [np.argwhere(value).mean(axis=0) for value in (pasted, mask)]
        drifts.append(centers[0] - centers[1])
    # A half-pixel error would show as a drift of half a pixel.
    np.testing.assert_allclose(np.mean(drifts, axis=0), 0, atol=0.06)
