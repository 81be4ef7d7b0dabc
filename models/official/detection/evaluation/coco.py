"""COCO average precision over every image of a split, computed by hotcoco.

The ground truth is that of *all* images, whether or not anything was detected in them: leaving an
image without detections out of the sums would raise the AP of a detector that misses it.
"""

from collections.abc import Sequence
from typing import Any, Literal

import hotcoco
import numpy as np

from tpudet.detection.evaluation.class_scores import ClassScores
from tpudet.detection.evaluation.ground_truth import GroundTruth, ignored_as_mask
from tpudet.detection.ops.numpy_boxes import boxes_to_xywh
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.errors import listing

# The evaluator's names give the number of detections; these say that it is a maximum.
METRIC_NAMES = {"AR1": "ARmax1", "AR10": "ARmax10", "AR100": "ARmax100"}
MASK_PREFIX = "mask_"
SIZE_GROUPS = {
    "s": "no object smaller than 32x32 px",
    "m": "no object between 32x32 and 96x96 px",
    "l": "no object larger than 96x96 px",
}


def coco_metrics(
    truth: GroundTruth, detections: DetectionTable, class_names: Sequence[str]
) -> dict[str, float]:
    """Returns the 12 COCO numbers and the AP of each class, all in 0..1.

    Keys: AP AP50 AP75 APs APm APl ARmax1 ARmax10 ARmax100 ARs ARm ARl, then `AP/<class name>` in
    the order of `class_names`. Where both have masks the same numbers follow for these, each key
    with `mask_` before it. A number that is undefined, because the split has no such object, is -1
    (`explain_missing` says why). Equal to pycocotools with its default settings.

    Raises:
        ValueError: a class id outside 1..C, an image index outside `truth`, a value that is not
            finite, or two classes of one name.
    """
    check_class_names(class_names)
    for what, table in (("ground truth", truth), ("detections", detections)):
        check_columns(what, table, num_images=len(truth.records), num_classes=len(class_names))
    metrics = _evaluate(truth, detections, class_names, "bbox")
    if truth.masks is None or detections.masks is None:
        return metrics
    masks = _evaluate(truth, detections, class_names, "segm")
    return metrics | {f"{MASK_PREFIX}{key}": value for key, value in masks.items()}


def _evaluate(
    truth: GroundTruth,
    detections: DetectionTable,
    class_names: Sequence[str],
    kind: Literal["bbox", "segm"],
) -> dict[str, float]:
    tables = to_hotcoco(truth, detections, len(class_names), with_masks=kind == "segm")
    evaluator = hotcoco.COCOeval(*tables, kind)
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summary_lines()  # computes the summary without printing it
    found = evaluator.get_results(per_class=True)
    metrics = {METRIC_NAMES.get(k, k): float(found[k]) for k in evaluator.metric_keys()}
    for class_id, name in enumerate(class_names, start=1):
        metrics[f"AP/{name}"] = float(found.get(f"AP/{class_id}", -1.0))
    return metrics


def coco_class_scores(
    truth: GroundTruth, detections: DetectionTable, num_classes: int
) -> ClassScores:
    """Precision and recall of the boxes of each class, matched as COCO does at an IoU of 0.5."""
    evaluator = hotcoco.COCOeval(*to_hotcoco(truth, detections, num_classes), "bbox")
    evaluator.params.iouThrs = [0.5]
    evaluator.evaluate()
    evaluator.accumulate()
    found: Any = evaluator.eval
    # [IoUs, recalls, C, sizes, numbers of detections]: any size, 100 detections
    precisions, thresholds = (found[name][0, :, :, 0, -1].T for name in ("precision", "scores"))
    is_instance = ~truth.is_crowd
    instances = np.bincount(truth.classes[is_instance], minlength=num_classes + 1)[1:]
    is_unknown = (instances == 0)[:, None]
    return ClassScores(
        images=images_by_class(truth.image_indices, truth.classes, is_instance, num_classes),
        instances=instances,
        ap50=np.where(instances > 0, precisions.mean(axis=1), np.nan),
        precisions=np.where(is_unknown, np.nan, precisions),
        thresholds=np.where(is_unknown, np.nan, thresholds),
    )


def images_by_class(
    image_indices: np.ndarray, classes: np.ndarray, is_instance: np.ndarray, num_classes: int
) -> np.ndarray:
    """[C] int64: the number of images with an instance of each class.

    Args:
        image_indices: [G] of the ground truth.
        classes: [G] 1-based.
        is_instance: [G] bool, the rows that count.
        num_classes: C.
    """
    pairs = np.unique(np.stack([image_indices, classes])[:, is_instance], axis=1)
    return np.bincount(pairs[1], minlength=num_classes + 1)[1:]


def explain_missing(metrics: dict[str, float], truth: GroundTruth) -> list[str]:
    """Says in words why a metric is -1, one line per cause; an empty list if none is.

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
        first = listing(missing.values())
        lines.append(f"AP is -1 for {len(missing)} classes without ground truth here: {first}")
    return lines


def to_hotcoco(
    truth: GroundTruth,
    detections: DetectionTable,
    num_classes: int,
    *,
    with_masks: bool = False,
) -> tuple[hotcoco.COCO, hotcoco.COCO]:
    """Converts the columns for hotcoco, images and objects numbered from 1, as in pycocotools."""
    coco_truth = hotcoco.COCO.from_arrays(
        [
            {"id": i, "height": int(height), "width": int(width)}
            for i, (height, width) in enumerate(truth.sizes, start=1)
        ],
        [{"id": k, "name": str(k)} for k in range(1, num_classes + 1)],
        truth.image_indices.astype(np.int64) + 1,
        truth.classes.astype(np.int64),
        boxes_to_xywh(truth.boxes),
        ids=np.arange(1, len(truth.classes) + 1),
        area=truth.areas.astype(np.float64),
        iscrowd=(ignored_as_mask(truth) if with_masks else truth.is_crowd).astype(np.int64),
        segmentation=truth.masks if with_masks else None,
    )
    rows = np.concatenate(
        [
            detections.image_indices[:, None] + 1.0,
            boxes_to_xywh(detections.boxes),
            detections.scores[:, None],
            detections.classes[:, None],
        ],
        axis=1,
    )
    if not with_masks:
        return coco_truth, coco_truth.load_res(rows)
    found = coco_truth.load_res(rows, segmentation=detections.masks)
    if detections.masks:  # else there is no id
        # The size of a detection is that of its mask, as where results have no boxes.
        areas = np.asarray(hotcoco.mask.area(detections.masks), np.float64)
        found.update_anns(ids=np.arange(1, len(rows) + 1), area=areas)
    return coco_truth, found


def check_columns(
    what: str, table: GroundTruth | DetectionTable, *, num_images: int, num_classes: int
) -> None:
    """Raises a ValueError where a class id or image index is unknown or a number not finite."""
    problems = []
    wrong = table.classes[(table.classes < 1) | (table.classes > num_classes)]
    if len(wrong):
        problems.append(f"class ids {listing(np.unique(wrong))}, allowed are 1..{num_classes}")
    wrong = table.image_indices[(table.image_indices < 0) | (table.image_indices >= num_images)]
    if len(wrong):
        problems.append(f"image indices {listing(np.unique(wrong))}, there are {num_images} images")
    scores = table.scores if isinstance(table, DetectionTable) else table.areas
    if table.masks is not None and len(table.masks) != len(table.classes):
        problems.append(f"{len(table.masks)} masks for {len(table.classes)} boxes")
    if not (np.isfinite(table.boxes).all() and np.isfinite(scores).all()):
        problems.append("boxes, scores or areas that are not finite")
    if problems:
        raise ValueError(f"{what}: {'; '.join(problems)}")


def check_class_names(class_names: Sequence[str]) -> None:
    """Raises a ValueError where a name occurs twice or there is none."""
    repeated = sorted({name for name in class_names if list(class_names).count(name) > 1})
    if repeated or not class_names:
        listed = f"class names {repeated} are listed twice in the class list"
        what = listed if repeated else "no class"
        raise ValueError(f"{what}: the AP of each class needs a name of its own")
