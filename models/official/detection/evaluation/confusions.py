"""The confusion matrix of a split: which classes a detector mistakes for each other."""

import hotcoco
import numpy as np

from tpudet.detection.evaluation.coco import to_hotcoco
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.open_images.metric import (
    ChallengeTruth,
    best_boxes,
    image_class_keys,
)
from tpudet.detection.types import DetectionTable


def count_confusions(
    truth: GroundTruth, detections: DetectionTable, num_classes: int, *, min_score: float
) -> np.ndarray:
    """Counts objects by their class and the class of the prediction on them, [C + 1, C + 1] int64.

    Per image, predictions of any class take objects of any class in descending order of score, at
    an IoU of 0.5 or more. The last row counts predictions without object, the last column missed
    objects. Predictions without object that lie in a crowd of their class, half or more of them, do
    not count, nor do crowds.

    Args:
        truth: of all images.
        detections: boxes in pixels of the images.
        num_classes: C.
        min_score: of the predictions that count, 0..1.
    """
    shown = np.flatnonzero(detections.scores >= min_score)
    shown = shown[~_only_in_crowd(truth, _take(detections, shown), num_classes)]
    tables = to_hotcoco(truth, _take(detections, shown), num_classes)
    # hotcoco's own limit is 100 per image.
    counted = hotcoco.COCOeval(*tables, "bbox").confusion_matrix(
        iou_thr=0.5, max_det=max(1, len(shown))
    )
    return counted["matrix"].astype(np.int64)


def _take(detections: DetectionTable, rows: np.ndarray) -> DetectionTable:
    return DetectionTable(
        detections.image_indices[rows],
        detections.boxes[rows],
        detections.scores[rows],
        detections.classes[rows],
    )


def _only_in_crowd(truth: GroundTruth, detections: DetectionTable, num_classes: int) -> np.ndarray:
    """[D] bool: half or more in a crowd of the class, and on no object of any class."""
    verified = np.ones((len(truth.records), num_classes), bool)
    table = ChallengeTruth(
        truth.image_indices, truth.classes, truth.boxes, truth.is_crowd, verified
    )
    every = np.arange(len(detections.scores))
    keys = image_class_keys(table, detections, every)
    in_crowd = best_boxes(table, truth.is_crowd, keys, detections.boxes, over_detection=True)
    one_class = table._replace(classes=np.ones_like(truth.classes), verified=verified[:, :1])
    on_object = best_boxes(
        one_class,
        ~truth.is_crowd,
        detections.image_indices.astype(np.int64),
        detections.boxes,
        over_detection=False,
    )
    return (in_crowd.reached() >= 0) & (on_object.reached() < 0)
