import math

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.ops.boxes import (
    box_areas,
    clip_boxes,
    clip_to_regions,
    decode_boxes,
    encode_boxes,
    image_regions,
    iou_matrix,
)
from tpudet.detection.types import Batch


def random_boxes(rng, shape, extent=100.0):
    corners = rng.uniform(0, extent, (*shape, 2, 2))
    return np.concatenate([corners.min(-2), corners.max(-2)], axis=-1).astype(np.float32)


def test_iou_by_hand():
    first = np.array([[0, 0, 2, 2], [5, 5, 5, 9]], np.float32)
    second = np.array([[0, 0, 2, 2], [1, 1, 3, 3], [2, 0, 4, 2], [5, 5, 5, 9]], np.float32)
    # 4/4; 1/(4+4-1); touching boxes share nothing; without area nothing, not NaN.
    expected = [[1, 1 / 7, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(iou_matrix(first, second), expected, rtol=1e-6)


def test_iou_agrees_with_pycocotools():
    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, (20,)), random_boxes(rng, (30,))

    def xywh(boxes):
        boxes = boxes.astype(np.float64)
        return np.concatenate([boxes[:, 1::-1], boxes[:, :1:-1] - boxes[:, 1::-1]], axis=1)

    expected = coco_mask.iou(xywh(first), xywh(second), [0] * 30)
    np.testing.assert_allclose(iou_matrix(first, second), expected, atol=1e-5)


def test_encode_by_hand():
    # A box twice as high, half as wide, its centre one anchor height down.
    anchor = np.array([0, 0, 10, 20], np.float32)
    box = np.array([5, 5, 25, 15], np.float32)
    expected = [1.0, 0.0, math.log(2.0), math.log(0.5)]
    np.testing.assert_allclose(encode_boxes(box, anchor), expected, rtol=1e-6)


def test_decode_is_the_inverse_of_encode():
    rng = np.random.default_rng(1)
    anchors, boxes = random_boxes(rng, (200,)), random_boxes(rng, (3, 200))
    boxes[..., 2:] += 2.0
    anchors[..., 2:] += 2.0
    np.testing.assert_allclose(
        decode_boxes(encode_boxes(boxes, anchors), anchors), boxes, rtol=1e-5, atol=1e-4
    )
    deltas = rng.normal(0, 1, (3, 200, 4)).astype(np.float32)
    np.testing.assert_allclose(
        encode_boxes(decode_boxes(deltas, anchors), anchors), deltas, rtol=1e-3, atol=1e-4
    )


def test_decode_limits_sizes():
    anchor = np.array([0, 0, 16, 32], np.float32)
    box = decode_boxes(np.array([0, 0, 1e6, 5], np.float32), anchor)
    np.testing.assert_allclose(box[2:] - box[:2], [1000.0, 2000.0], rtol=1e-5)


def test_the_region_of_an_image_and_boxes_clipped_to_it():
    """Fitted with padding below; scaled up and cropped; a filler."""
    regions = image_regions(
        Batch(
            *(np.zeros((3, 100, 125, 3), np.uint8), None, None, None, None),
            original_sizes=np.array([[50, 100], [60, 80], [1, 1]], np.float32),
            scales=np.array([[1.25, 1.25], [4, 4], [1, 1]], np.float32),
            offsets=np.array([[0, 0], [20, 300], [0, 0]], np.float32),
        )
    )
    np.testing.assert_array_equal(regions, [[0, 0, 62.5, 125], [0, 0, 100, 20], [0, 0, 1, 1]])
    boxes = np.tile(np.array([[[-3, 10, 90, 30], [70, 0, 80, 5]]], np.float32), (3, 1, 1))
    np.testing.assert_array_equal(
        clip_to_regions(boxes, regions),
        [
            [[0, 10, 62.5, 30], [62.5, 0, 62.5, 5]],
            [[0, 10, 90, 20], [70, 0, 80, 5]],
            [[0, 1, 1, 1], [1, 0, 1, 1]],
        ],
    )


def test_clip_and_areas():
    boxes = np.array([[-5, 3, 20, 8], [1, 2, 3, 30], [12, 0, 15, 9]], np.float32)
    clipped = clip_boxes(boxes, height=10, width=20)
    np.testing.assert_array_equal(clipped, [[0, 3, 10, 8], [1, 2, 3, 20], [10, 0, 10, 9]])
    np.testing.assert_array_equal(box_areas(clipped), [50, 36, 0])
    assert float(box_areas(np.array([3.0, 3.0, 1.0, 5.0], np.float32))) == pytest.approx(0.0)
