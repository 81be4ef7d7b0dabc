"""The images of an evaluation, drawn whatever their shape."""

from typing import Any

import numpy as np
import pytest

from tpudet.detection.evaluation.drawing import draw_batch
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.types import Batch, Detections


def drawn(size: tuple[int, int], **names: Any) -> np.ndarray:
    """The drawing of an image of this size, all of which is an object."""
    scale = 64 / max(size)
    box = np.array([[0, 0, *size]], np.float32)
    batch = Batch(
        images=np.zeros((1, 64, 64, 3), np.uint8),
        boxes=box[None] * scale,
        classes=np.ones((1, 1), np.int32),
        is_crowd=np.zeros((1, 1), bool),
        records=np.zeros(1, np.int64),
        original_sizes=np.array([size], np.float32),
        scales=np.full((1, 2), scale, np.float32),
        offsets=np.zeros((1, 2), np.float32),
    )
    found = Detections(
        boxes=box[None] * scale,
        scores=np.full((1, 1), 0.9, np.float32),
        classes=np.ones((1, 1), np.int32),
        num_detections=np.ones(1, np.int32),
    )
    truth = GroundTruth(
        records=np.zeros(1, np.int64),
        sizes=np.array([size], np.float32),
        image_indices=np.zeros(1, np.int32),
        boxes=box,
        classes=np.ones(1, np.int32),
        is_crowd=np.zeros(1, bool),
        areas=np.ones(1, np.float32),
        **names,
    )
    (image,) = draw_batch(batch, found, ["cat"], truth)
    return image


@pytest.mark.parametrize("size", [(4000, 3), (3, 4000), (1, 1), (64, 64)])
def test_an_image_thinner_than_a_pixel_of_the_canvas_is_drawn(size: tuple[int, int]) -> None:
    assert drawn(size).max() > 100


def test_an_image_is_called_by_its_file_then_its_id_then_its_record() -> None:
    named, by_id = drawn((64, 64), file_names=("a.jpg",)), drawn((64, 64), source_ids=("a.jpg",))
    both = drawn((64, 64), file_names=("a.jpg",), source_ids=("7",))
    unnamed = drawn((64, 64), file_names=("",), source_ids=("record 0",))
    np.testing.assert_array_equal(named, by_id)
    np.testing.assert_array_equal(named, both)
    np.testing.assert_array_equal(unnamed, drawn((64, 64)))
    assert (named != unnamed).any()
