"""The images of an evaluation, drawn whatever their shape."""

import numpy as np
import pytest

from tpudet.detection.evaluation.drawing import draw_batch
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.types import Batch, Detections


@pytest.mark.parametrize("size", [(4000, 3), (3, 4000), (1, 1), (64, 64)])
def test_an_image_thinner_than_a_pixel_of_the_canvas_is_drawn(size: tuple[int, int]) -> None:
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
    )
    (drawn,) = draw_batch(batch, found, ["cat"], truth)
    assert drawn.max() > 100
