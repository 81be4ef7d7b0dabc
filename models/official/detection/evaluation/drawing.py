"""Draws the images of an evaluation: ground truth beside detections."""

from collections.abc import Sequence

import cv2
import numpy as np

from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.ops.drawing import draw_comparison
from tpudet.detection.ops.numpy_masks import decode_rle
from tpudet.detection.types import Batch, Detections

# Detections with lower scores are not drawn; the metrics take all.
DRAWN_MIN_SCORE = 0.3


def draw_batch(
    batch: Batch, detections: Detections, class_names: Sequence[str], truth: GroundTruth
) -> list[np.ndarray]:
    """Draws ground truth beside detections for every image of a batch; fillers are skipped.

    Args:
        batch: images and where they are on the canvas.
        detections: of the batch.
        class_names: C names.
        truth: of all images.
    """
    drawn = []
    for i in np.flatnonzero(batch.records >= 0):
        image = int(np.searchsorted(truth.records, batch.records[i]))
        rows = np.flatnonzero(truth.image_indices == image)
        size = batch.original_sizes[i] * batch.scales[i] - batch.offsets[i]
        # A side of 3 pixels beside one of 4000 is shorter than half a pixel of the canvas.
        height, width = np.clip(np.round(size).astype(int), 1, batch.images.shape[1:3])
        drawn.append(
            draw_comparison(
                batch.images[i, :height, :width],
                truth_boxes=truth.boxes[rows] * np.tile(batch.scales[i], 2),
                truth_classes=truth.classes[rows],
                truth_masks=_scaled_masks(truth, rows, height=height, width=width),
                boxes=detections.boxes[i],
                scores=detections.scores[i],
                classes=detections.classes[i],
                masks=None if detections.masks is None else detections.masks[i],
                class_names=class_names,
                min_score=DRAWN_MIN_SCORE,
                title=_title(truth, image),
            )
        )
    return drawn


def _title(truth: GroundTruth, image: int) -> str:
    """The file name of an image, else its id, else its place in the records."""
    names = (column[image] for column in (truth.file_names, truth.source_ids) if column)
    return next(filter(None, names), f"record {truth.records[image]}")


def _scaled_masks(
    truth: GroundTruth, rows: np.ndarray, *, height: int, width: int
) -> list[np.ndarray] | None:
    """The masks of some objects on an image that was scaled to this size, [height, width] bool."""
    if truth.masks is None:
        return None
    return [
        cv2.resize(
            decode_rle(truth.masks[row]).astype(np.uint8),
            (width, height),
            interpolation=cv2.INTER_NEAREST,
        ).astype(bool)
        for row in rows
    ]
