import numpy as np
import pytest

from tpudet.detection.ops.numpy_boxes import box_areas, iou_matrix


def test_hand_checked_overlaps() -> None:
    a = np.array([[0.0, 0, 2, 2], [0, 0, 4, 1]])
    b = np.array([[0.0, 0, 2, 2], [1, 1, 3, 3], [5, 5, 6, 6], [2, 0, 4, 2]])
    assert box_areas(a).tolist() == [4, 4]
    np.testing.assert_allclose(iou_matrix(a, b), [[1, 1 / 7, 0, 0], [1 / 3, 0, 0, 1 / 3]])
    np.testing.assert_array_equal(iou_matrix(a, b), iou_matrix(b, a).T)


@pytest.mark.parametrize("number", [0, 3])
def test_boxes_without_area_or_without_numbers_overlap_nothing(number: int) -> None:
    boxes = np.zeros((number, 4))
    boxes[1:2] = np.nan
    assert iou_matrix(boxes, boxes).tolist() == np.zeros((number, number)).tolist()
