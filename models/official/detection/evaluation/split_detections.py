"""Collects the detections of a split batch by batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpudet.detection.evaluation.coco import check_class_names, check_columns
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.mask_jobs import PasteJob
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.detection.ops.numpy_masks import Rle
from tpudet.detection.types import Batch, Detections, DetectionTable
from tpudet.trainkit.errors import listing


class SplitDetections:
    """Collects the detections of a split batch by batch, to score them together.

    Only valid detections are kept, as columns of numbers: 28 bytes each, and some 600 more for the
    run lengths of a mask.
    """

    def __init__(self, truth: GroundTruth, class_names: Sequence[str]):
        check_class_names(class_names)
        self.truth = truth
        self.class_names = tuple(class_names)
        self._index_of_record = {int(record): i for i, record in enumerate(truth.records)}
        self._seen = np.zeros(len(truth.records), bool)
        self._columns: list[DetectionTable] = []
        self._masks: dict[int, list[Rle]] = {}  # by place in `_columns`

    def add(self, batch: Batch, detections: Detections) -> PasteJob | None:
        """Adds the detections of one batch; fillers (record -1) are skipped.

        Returns:
            The masks that have to be pasted into their images, for `set_masks`; None if the
            detections have none.

        Raises:
            ValueError: a record that is not in the ground truth, one that was added before, one
                whose image has another size than in the ground truth, or a detection that is not
                finite or of an unknown class.
        """
        records, sizes = np.asarray(batch.records), np.asarray(batch.original_sizes)
        scores, classes, num_detections = map(
            np.asarray, (detections.scores, detections.classes, detections.num_detections)
        )
        is_real = records >= 0
        indices = self._mark_seen(records[is_real], sizes[is_real])
        boxes = boxes_to_original(
            np.asarray(detections.boxes),
            scales=np.asarray(batch.scales),
            offsets=np.asarray(batch.offsets),
            sizes=sizes,
        )
        is_valid = np.arange(scores.shape[1]) < num_detections[is_real, None]
        rows = np.repeat(indices, is_valid.sum(axis=1))
        columns = DetectionTable(
            image_indices=rows,
            boxes=boxes[is_real][is_valid].astype(np.float32),
            scores=scores[is_real][is_valid].astype(np.float32),
            classes=classes[is_real][is_valid].astype(np.int32),
        )
        check_columns(
            "detections", columns, num_images=len(self._seen), num_classes=len(self.class_names)
        )
        self._columns.append(columns)
        if detections.masks is None:
            return None
        return PasteJob(
            number=len(self._columns) - 1,
            masks=np.asarray(detections.masks)[is_real][is_valid].astype(np.float32),
            boxes=columns.boxes,
            sizes=np.round(self.truth.sizes[rows]).astype(int),
        )

    def set_masks(self, number: int, masks: list[Rle]) -> None:
        """Adds the pasted masks of the job of this number."""
        self._masks[number] = masks

    def share(self, gather: Callable[[Any], list[Any]]) -> None:
        """Adds what the other processes have added, so that all hold the same.

        Args:
            gather: returns the values of all processes; every process calls it.

        Raises:
            ValueError: an image was added by several processes.
        """
        parts = gather((self._seen, self._columns, self._masks))
        times = np.sum([seen for seen, _, _ in parts], axis=0)
        if (times > 1).any():
            twice = self.truth.records[times > 1]
            raise ValueError(f"records {listing(twice)} were evaluated by several processes")
        self._seen, self._columns, self._masks = times > 0, [], {}
        for _, columns, masks in parts:
            first = len(self._columns)
            self._masks |= {first + place: rles for place, rles in masks.items()}
            self._columns += columns

    def columns(self) -> DetectionTable:
        """Returns everything that was added.

        Raises:
            ValueError: an image of the split was never added.
        """
        unseen = self.truth.records[~self._seen]
        if len(unseen):
            raise ValueError(
                f"{len(unseen)} of {len(self._seen)} images of the split were never evaluated "
                f"(records {listing(unseen)}); the AP of a part of the split would mislead, so "
                "feed every image once, the last partial batch included"
            )
        columns, masks = self._columns, self._masks
        return DetectionTable(
            image_indices=np.concatenate([c.image_indices for c in columns]),
            boxes=np.concatenate([c.boxes for c in columns]),
            scores=np.concatenate([c.scores for c in columns]),
            classes=np.concatenate([c.classes for c in columns]),
            masks=[m for place in sorted(masks) for m in masks[place]] if masks else None,
        )

    def _mark_seen(self, records: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Marks images as seen and returns their rows in the ground truth, [number of records]."""
        unknown = [int(r) for r in records if int(r) not in self._index_of_record]
        if unknown:
            raise ValueError(
                f"records {listing(unknown)} are not in the ground truth of {len(self._seen)} "
                "images: detections and ground truth come from different files"
            )
        indices = np.array([self._index_of_record[int(r)] for r in records], np.int32)
        unique, times = np.unique(indices, return_counts=True)
        twice = set(unique[times > 1]) | set(indices[self._seen[indices]])
        if twice:
            raise ValueError(
                f"records {listing(self.truth.records[sorted(twice)])} were evaluated twice"
            )
        differs = np.abs(self.truth.sizes[indices] - sizes).max(axis=1, initial=0) > 0.5
        if differs.any():
            i = int(np.argmax(differs))
            raise ValueError(
                f"record {records[i]} is {sizes[i]} px high and wide when decoded, but its ground "
                f"truth says {self.truth.sizes[indices[i]]}: write the TFRecord files again"
            )
        self._seen[indices] = True
        return indices
