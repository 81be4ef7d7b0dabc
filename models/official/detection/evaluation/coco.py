"""COCO average precision over every image of a split, computed by hotcoco.

The ground truth is that of *all* images, whether or not anything was detected in them: leaving an
image without detections out of the sums would raise the AP of a detector that misses it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import hotcoco
import numpy as np

from detection.evaluation.ground_truth import GroundTruth, name_some
from detection.evaluation.ground_truth import load_ground_truth as load_ground_truth
from detection.types import Batch, Detections

# The evaluator's names for average recall count detections; ours say that they are a maximum.
METRIC_NAMES = {"AR1": "ARmax1", "AR10": "ARmax10", "AR100": "ARmax100"}
SIZE_GROUPS = {
    "s": "no object smaller than 32x32 px",
    "m": "no object between 32x32 and 96x96 px",
    "l": "no object larger than 96x96 px",
}


class ImageDetections(NamedTuple):
    """The detections of many images as columns: D rows. Boxes in pixels, y1 x1 y2 x2."""

    image_indices: np.ndarray  # [D] int, row of the image in `GroundTruth.records`
    boxes: np.ndarray  # [D, 4] float
    scores: np.ndarray  # [D] float
    classes: np.ndarray  # [D] int, 1-based


def coco_metrics(
    truth: GroundTruth, detections: ImageDetections, class_names: Sequence[str]
) -> dict[str, float]:
    """Returns the 12 COCO numbers and the AP of each class, all in 0..1.

    Keys: AP AP50 AP75 APs APm APl ARmax1 ARmax10 ARmax100 ARs ARm ARl, then `AP/<class name>` in
    the order of `class_names`. A number that the split cannot give, because it holds no such
    object, is -1 (`explain_missing` says why). Equal to pycocotools with its default settings.

    Raises:
        ValueError: a class id outside 1..C, an image index outside `truth`, a value that is not
            finite, or two classes of one name.
    """
    _check_class_names(class_names)
    for what, table in (("ground truth", truth), ("detections", detections)):
        _check_columns(what, table, num_images=len(truth.records), num_classes=len(class_names))
    evaluator = hotcoco.COCOeval(*_to_hotcoco(truth, detections, len(class_names)), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summary_lines()  # computes the summary without printing it
    found = evaluator.get_results(per_class=True)
    metrics = {METRIC_NAMES.get(k, k): float(found[k]) for k in evaluator.metric_keys()}
    for class_id, name in enumerate(class_names, start=1):
        metrics[f"AP/{name}"] = float(found.get(f"AP/{class_id}", -1.0))
    return metrics


def explain_missing(metrics: dict[str, float], truth: GroundTruth) -> list[str]:
    """Says in words why a metric is -1, a line a cause; an empty list where none is.

    Args:
        metrics: what `coco_metrics` returned.
        truth: the ground truth it was computed from; objects marked as crowds do not count.
    """
    if metrics["AP"] == -1:
        crowds = f" ({len(truth.classes)} crowd regions)" if len(truth.classes) else ""
        return [f"every metric is -1: no ground truth object in this split{crowds}"]
    lines = [
        f"AP{size} and AR{size} are -1: {reason}"
        for size, reason in SIZE_GROUPS.items()
        if metrics[f"AP{size}"] == -1
    ]
    crowd_only = set(truth.classes[truth.is_crowd]) - set(truth.classes[~truth.is_crowd])
    names = [key.removeprefix("AP/") for key in metrics if key.startswith("AP/")]
    missing = {k: n for k, n in enumerate(names, start=1) if metrics[f"AP/{n}"] == -1}
    for class_id in sorted(crowd_only & missing.keys()):
        name = missing.pop(class_id)
        lines.append(f"AP/{name} is -1: only crowd regions of class {name} in this split")
    if len(missing) <= 5:
        lines += [
            f"AP/{n} is -1: no ground truth of class {n} in this split" for n in missing.values()
        ]
    else:
        listed = ", ".join(missing.values())
        lines.append(f"AP is -1 for {len(missing)} classes without ground truth here: {listed}")
    return lines


def boxes_to_original(
    boxes: np.ndarray, scales: np.ndarray, offsets: np.ndarray, original_sizes: np.ndarray
) -> np.ndarray:
    """Takes boxes from the canvas back to the original picture: (box + offset) / scale, clipped.

    Args:
        boxes: [B, K, 4] canvas pixels.
        scales: [B, 2] canvas pixels per original pixel, y and x.
        offsets: [B, 2] canvas pixels, y and x.
        original_sizes: [B, 2] height and width.

    Returns:
        [B, K, 4] pixels of the original picture.
    """
    scales, offsets, sizes = (
        np.tile(np.asarray(pair), (1, 2))[:, None, :] for pair in (scales, offsets, original_sizes)
    )
    return np.clip((boxes + offsets) / scales, 0, sizes)


class CocoEvaluation:
    """Collects the detections of a split batch by batch, then scores them once.

    Only valid detections are kept, as columns of numbers: 28 bytes each.
    """

    def __init__(self, truth: GroundTruth, class_names: Sequence[str]):
        _check_class_names(class_names)
        self.truth = truth
        self.class_names = tuple(class_names)
        self._index_of_record = {int(record): i for i, record in enumerate(truth.records)}
        self._seen = np.zeros(len(truth.records), bool)
        self._columns: list[ImageDetections] = []

    def add(self, batch: Batch, detections: Detections) -> None:
        """Takes in the detections of one batch; fillers (record -1) are passed over.

        Raises:
            ValueError: a record that is not in the ground truth, one that was added before, one
                whose picture has another size than the ground truth says, or a detection that
                is not finite or of an unknown class.
        """
        records, sizes = np.asarray(batch.records), np.asarray(batch.original_sizes)
        boxes, scores, classes, num_detections = map(np.asarray, detections)
        is_real = records >= 0
        indices = self._enter(records[is_real], sizes[is_real])
        boxes = boxes_to_original(boxes, np.asarray(batch.scales), np.asarray(batch.offsets), sizes)
        is_valid = np.arange(scores.shape[1]) < num_detections[is_real, None]
        columns = ImageDetections(
            image_indices=np.repeat(indices, is_valid.sum(axis=1)),
            boxes=boxes[is_real][is_valid].astype(np.float32),
            scores=scores[is_real][is_valid].astype(np.float32),
            classes=classes[is_real][is_valid].astype(np.int32),
        )
        _check_columns(
            "detections", columns, num_images=len(self._seen), num_classes=len(self.class_names)
        )
        self._columns.append(columns)

    def result(self) -> dict[str, float]:
        """Returns `coco_metrics` of everything added.

        Raises:
            ValueError: an image of the split was never added.
        """
        unseen = self.truth.records[~self._seen]
        if len(unseen):
            raise ValueError(
                f"{len(unseen)} of {len(self._seen)} images of the split were never evaluated "
                f"(records {name_some(unseen)}); the AP of a part of the split would mislead, so "
                "feed every image once, the last partial batch included"
            )
        columns = ImageDetections(*(np.concatenate(c) for c in zip(*self._columns, strict=True)))
        return coco_metrics(self.truth, columns, self.class_names)

    def explanations(self, metrics: dict[str, float]) -> list[str]:
        """Returns the lines of `explain_missing` for metrics that `result` returned."""
        return explain_missing(metrics, self.truth)

    def _enter(self, records: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Marks images as seen and returns their rows in the ground truth, [number of records]."""
        unknown = [int(r) for r in records if int(r) not in self._index_of_record]
        if unknown:
            raise ValueError(
                f"records {name_some(unknown)} are not in the ground truth of {len(self._seen)} "
                "images: detections and ground truth come from different files"
            )
        indices = np.array([self._index_of_record[int(r)] for r in records], np.int32)
        unique, times = np.unique(indices, return_counts=True)
        twice = set(unique[times > 1]) | set(indices[self._seen[indices]])
        if twice:
            raise ValueError(
                f"records {name_some(self.truth.records[sorted(twice)])} were evaluated twice"
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


def _to_hotcoco(
    truth: GroundTruth, detections: ImageDetections, num_classes: int
) -> tuple[hotcoco.COCO, hotcoco.COCO]:
    """Hands the columns to hotcoco, images and objects numbered from 1, as pycocotools needs."""
    coco_truth = hotcoco.COCO.from_arrays(
        [
            {"id": i, "height": int(height), "width": int(width)}
            for i, (height, width) in enumerate(truth.sizes, start=1)
        ],
        [{"id": k, "name": str(k)} for k in range(1, num_classes + 1)],
        truth.image_indices.astype(np.int64) + 1,
        truth.classes.astype(np.int64),
        _to_xywh(truth.boxes),
        ids=np.arange(1, len(truth.classes) + 1),
        area=truth.areas.astype(np.float64),
        iscrowd=truth.is_crowd.astype(np.int64),
    )
    rows = np.concatenate(
        [
            detections.image_indices[:, None] + 1.0,
            _to_xywh(detections.boxes),
            detections.scores[:, None],
            detections.classes[:, None],
        ],
        axis=1,
    )
    return coco_truth, coco_truth.load_res(rows)


def _to_xywh(boxes: np.ndarray) -> np.ndarray:
    """[n, 4] y1 x1 y2 x2 -> [n, 4] float64 x, y, width, height."""
    y1, x1, y2, x2 = boxes.astype(np.float64).T
    return np.stack([x1, y1, x2 - x1, y2 - y1], axis=1)


def _check_columns(
    what: str, table: GroundTruth | ImageDetections, *, num_images: int, num_classes: int
) -> None:
    problems = []
    wrong = table.classes[(table.classes < 1) | (table.classes > num_classes)]
    if len(wrong):
        problems.append(f"class ids {name_some(np.unique(wrong))}, allowed are 1..{num_classes}")
    wrong = table.image_indices[(table.image_indices < 0) | (table.image_indices >= num_images)]
    if len(wrong):
        problems.append(
            f"image indices {name_some(np.unique(wrong))}, there are {num_images} images"
        )
    scores = table.scores if isinstance(table, ImageDetections) else table.areas
    if not (np.isfinite(table.boxes).all() and np.isfinite(scores).all()):
        problems.append("boxes, scores or areas that are not finite")
    if problems:
        raise ValueError(f"{what}: {'; '.join(problems)}")


def _check_class_names(class_names: Sequence[str]) -> None:
    repeated = sorted({name for name in class_names if list(class_names).count(name) > 1})
    if repeated or not class_names:
        what = f"class names {repeated} stand twice in the class list" if repeated else "no class"
        raise ValueError(f"{what}: the AP of each class needs a name of its own")
