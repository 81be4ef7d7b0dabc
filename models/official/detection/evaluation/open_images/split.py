"""Scores the split of a data set by the rules of the Open Images Challenge, for training runs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pycocotools import mask as coco_mask

from tpudet.detection.evaluation.class_scores import RECALLS, ClassScores, sample_curve
from tpudet.detection.evaluation.coco import MASK_PREFIX, images_by_class
from tpudet.detection.evaluation.ground_truth import GroundTruth
from tpudet.detection.evaluation.open_images.masks import score_masks
from tpudet.detection.evaluation.open_images.metric import (
    ChallengeTruth,
    Scored,
    average_precisions,
    expand,
    score_boxes,
)
from tpudet.detection.evaluation.open_images.truth import LabelNumbers, expand_verified
from tpudet.detection.evaluation.open_images.truth_csv import read_image_labels
from tpudet.detection.ops.numpy_masks import Rle, mask_area
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy_file
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.storage import read_text


class ChallengeSplit(NamedTuple):
    """The expanded ground truth of a split, and the ancestors by which detections are expanded."""

    truth: ChallengeTruth
    class_names: tuple[str, ...]
    ancestors: list[list[int]]  # of each class; classes from 0
    # COCO RLE of the expanded ground truth, None for an empty one; None without masks at all
    masks: list[Rle | None] | None = None

    def metrics(self, detections: DetectionTable) -> dict[str, float]:
        """Returns AP, AP50, which is the same number, and `AP/<class name>`.

        Where both have masks the same keys follow for these, with `mask_` before them. AP is the
        mean over classes with ground truth; the others have -1. Detections also count for the
        ancestors of their class, each box (or mask) once per class, with its best score. Masks
        without a pixel do not count, just as submissions have none.
        """
        boxes = _with_ancestors(detections._replace(masks=None), self.ancestors)
        metrics = self._summarize(score_boxes(self.truth, boxes))
        if self.masks is None or detections.masks is None:
            return metrics
        expanded = _with_ancestors(_with_pixels(detections, detections.masks), self.ancestors)
        masks = self._summarize(score_masks(self.truth, self.masks, expanded))
        return metrics | {f"{MASK_PREFIX}{key}": value for key, value in masks.items()}

    def class_scores(self, detections: DetectionTable) -> ClassScores:
        """Returns precision and recall of the boxes of each class, detections expanded."""
        boxes = _with_ancestors(detections._replace(masks=None), self.ancestors)
        scored = score_boxes(self.truth, boxes)
        num_classes = len(self.class_names)
        instances = np.bincount(scored.instance_classes, minlength=num_classes + 1)[1:]
        curves = np.full((num_classes, 2, len(RECALLS)), np.nan)
        for row in np.flatnonzero(instances).tolist():
            own = slice(*np.searchsorted(scored.classes, [row + 1, row + 2]))
            curves[row] = sample_curve(scored.scores[own], scored.is_true[own], int(instances[row]))
        every = np.ones(len(scored.instance_classes), bool)
        return ClassScores(
            images=images_by_class(
                scored.instance_images, scored.instance_classes, every, num_classes
            ),
            instances=instances,
            ap50=average_precisions(scored),
            precisions=curves[:, 0],
            thresholds=curves[:, 1],
        )

    def _summarize(self, scored: Scored) -> dict[str, float]:
        precisions = average_precisions(scored).tolist()
        known = [value for value in precisions if not math.isnan(value)]
        mean = float(np.mean(known)) if known else -1.0
        values = (-1.0 if math.isnan(value) else value for value in precisions)
        return {"AP": mean, "AP50": mean} | {
            f"AP/{name}": value for name, value in zip(self.class_names, values, strict=True)
        }

    def explanations(self, metrics: dict[str, float]) -> list[str]:
        """Explains metrics of -1."""
        if metrics["AP"] == -1:
            return ["every metric is -1: no ground truth object in this split"]
        missing = [name for name in self.class_names if metrics[f"AP/{name}"] == -1]
        if not missing:
            return []
        return [
            f"AP is -1 for {len(missing)} classes without ground truth: {listing(missing, limit=5)}"
        ]


def challenge_split(
    truth: GroundTruth, classes: Sequence[ClassEntry], *, hierarchy: str, image_labels: str
) -> ChallengeSplit:
    """Expands the ground truth of a split.

    Args:
        truth: the split. Its boxes without a mask are objects; for masks they absorb a detection
            each, and recall does not count them.
        classes: C entries; labels of the two files are their identifiers or names.
        hierarchy: path of a JSON, or empty.
        image_labels: path of a CSV of verified labels, or empty; it names images by their
            `source_ids`.

    Raises:
        ValueError: a file is not usable, or none of its labels is a class.
        OSError: a file cannot be opened.
    """
    tree = read_hierarchy_file(hierarchy) if hierarchy else Hierarchy((), {}, {})
    labels = LabelNumbers(classes, tree)
    num_classes = len(classes)  # the labels numbered first
    relatives = labels.relatives(tree.ancestors)
    ancestors = [[n for n in numbers if n < num_classes] for numbers in relatives[:num_classes]]
    if hierarchy and class_ids(classes).keys().isdisjoint(tree.labels):
        raise _no_class(hierarchy, tree.labels[0], classes)
    rows, expanded = expand(truth.classes - 1, ancestors)
    verified = np.zeros((len(truth.records), num_classes), bool)
    verified[truth.image_indices[rows], expanded] = True
    if image_labels:
        images, numbers = _verified_labels(image_labels, truth.source_ids, classes, labels, tree)
        verified[images, numbers] = True
    return ChallengeSplit(
        ChallengeTruth(
            truth.image_indices[rows],
            expanded + 1,
            truth.boxes[rows],
            truth.is_crowd[rows],
            verified,
        ),
        tuple(entry.name for entry in classes),
        ancestors,
        None if truth.masks is None else _drawn_masks(truth, rows),
    )


def _verified_labels(
    path: str,
    source_ids: Sequence[str],
    classes: Sequence[ClassEntry],
    labels: LabelNumbers,
    tree: Hierarchy,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of images, and the classes from 0, that a file of verified labels says something of.

    A balanced split has images several times, in rows of the same `source_ids`.
    """
    content = read_text(path)
    if content is None:
        raise FileNotFoundError(f"evaluation.rules.image_labels {path} does not exist")
    found = read_image_labels(content.encode(), path)
    rows_of: dict[str, list[int]] = {}
    for row, name in enumerate(source_ids):
        rows_of.setdefault(name, []).append(row)
    if rows_of.keys().isdisjoint(found.image_ids.tolist()):
        raise ValueError(f"{path}: none of its images is in this split")
    # An ancestor need not be a class for its descendants to be absent, so all are expanded.
    pairs = expand_verified(found, labels, tree)
    names, numbers = (np.concatenate(column) for column in zip(*pairs, strict=True))
    is_class = numbers < len(classes)
    if not is_class.any():
        raise _no_class(path, str(found.labels[0]), classes)
    rows = [rows_of.get(name, []) for name in names[is_class].tolist()]
    repeated = np.repeat(numbers[is_class], [len(own) for own in rows])
    return np.array([row for own in rows for row in own], np.int64), repeated


def _no_class(path: str, first_label: str, classes: Sequence[ClassEntry]) -> ValueError:
    """The error that no label of a file is a class or, by the hierarchy, says anything of one."""
    return ValueError(
        f"{path}: none of its labels is an identifier or a name in classes.csv: its first is "
        f"{first_label!r}, the first class is {classes[0].identifier!r}, {classes[0].name!r}"
    )


def _with_pixels(detections: DetectionTable, masks: Sequence[Rle]) -> DetectionTable:
    """Leaves out the detections whose mask is empty."""
    # pycocotools takes a twentieth of the time of `mask_area`, which does not trust the counts.
    kept = [row for row, mask in enumerate(masks) if coco_mask.area(mask)]
    return DetectionTable(
        detections.image_indices[kept],
        detections.boxes[kept],
        detections.scores[kept],
        detections.classes[kept],
        [masks[row] for row in kept],
    )


def _with_ancestors(detections: DetectionTable, ancestors: list[list[int]]) -> DetectionTable:
    if not any(ancestors):
        return detections
    rows, classes = expand(detections.classes - 1, ancestors)
    order = np.argsort(-detections.scores[rows], kind="stable")
    rows, classes = rows[order], classes[order]
    places = detections.boxes.T if detections.masks is None else [_equal_masks(detections.masks)]
    columns = [detections.image_indices[rows], classes, *(column[rows] for column in places)]
    kept = _first_of_equal(columns)  # it has the best score
    rows = rows[kept]
    return DetectionTable(
        detections.image_indices[rows],
        detections.boxes[rows],
        detections.scores[rows],
        classes[kept] + 1,
        None if detections.masks is None else [detections.masks[row] for row in rows.tolist()],
    )


def _equal_masks(masks: Sequence[Rle]) -> np.ndarray:
    """[n] int: a number for each of n masks, the same for equal ones of an image."""
    # An array of strings would make all as long as the longest.
    numbers: dict[bytes | str, int] = {}
    found = [numbers.setdefault(mask["counts"], len(numbers)) for mask in masks]
    return np.array(found, np.int64)


def _first_of_equal(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The indices, in ascending order, of the first of equal rows of [n] columns."""
    # Half the time or less of np.unique(axis=0), which compares rows as records.
    order = np.lexsort(columns)  # stable
    is_first = np.zeros(len(order), bool)
    is_first[:1] = True
    for column in columns:
        ordered = column[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    return np.sort(order[is_first])


def _drawn_masks(truth: GroundTruth, rows: np.ndarray) -> list[Rle | None]:
    """The masks of some objects; None for one that nobody drew, and for an empty one."""
    lacks_mask = (
        np.zeros(len(truth.classes), bool) if truth.lacks_mask is None else truth.lacks_mask
    )
    masks = [
        None if lacks or not mask_area(mask) else mask
        for mask, lacks in zip(truth.masks or [], lacks_mask.tolist(), strict=True)
    ]
    return [masks[row] for row in rows.tolist()]
