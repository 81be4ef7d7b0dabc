"""The report of an evaluation by the rules of Open Images: table, curves, error shares."""

import csv
import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import hotcoco
import numpy as np
from matplotlib.figure import Figure

from tpudet.detection.evaluation.open_images.metric import (
    ChallengeTruth,
    Scored,
    average_precisions,
    countable_rows,
    first_of_keys,
    precision_recall,
)
from tpudet.detection.ops.numpy_boxes import boxes_to_xywh
from tpudet.detection.types import DetectionTable
from tpudet.trainkit.class_list import ClassEntry

CURVES_PER_PAGE = 25
TABLE_COLUMNS = (
    *("LabelName", "Name", "AP", "Boxes", "GroupOf", "Predictions", "TruePositives", "BestRecall"),
)
_COLUMNS = 5
_TIDE_PER_IMAGE = 100  # detections, as TIDE itself takes
TIDE_MEANINGS = {
    "Cls": "right place, wrong class",
    "Loc": "right class, poor box",
    "Both": "wrong class and poor box",
    "Dupe": "duplicate",
    "Bkg": "no object there",
    "Miss": "not found",
}


class ScoredClass(NamedTuple):
    """A class of a scored submission."""

    label: str
    name: str
    ap: float  # NaN without ground truth
    boxes: int  # not group-of; expanded
    group_of: int
    predictions: int  # on images where the class is verified
    true_positives: int
    best_recall: float  # of all predictions; NaN without ground truth


class ErrorShare(NamedTuple):
    """The count of one kind of error, and the gain of AP without it."""

    kind: str
    number: int
    share: float  # of all errors
    # At IoU 0.5, as hotcoco computes AP. None for Miss: without its missed objects a class may have
    # none left, and hotcoco keeps it in the mean at AP 0.
    ap_gain: float | None


def scored_classes(
    truth: ChallengeTruth, scored: Scored, classes: Sequence[ClassEntry]
) -> list[ScoredClass]:
    """The rows of the table, in the order of the class list."""
    size = scored.num_classes + 1
    precisions = average_precisions(scored)
    group_of = np.bincount(truth.classes[truth.is_group_of], minlength=size)[1:]
    boxes = np.bincount(truth.classes, minlength=size)[1:] - group_of
    instances = np.bincount(scored.instance_classes, minlength=size)[1:]
    predictions = np.bincount(scored.classes, minlength=size)[1:] + scored.num_ignored
    found = np.bincount(scored.classes[scored.is_true], minlength=size)[1:]
    return [
        ScoredClass(
            *entry,
            float(precisions[k]),
            int(boxes[k]),
            int(group_of[k]),
            int(predictions[k]),
            int(found[k]),
            float(found[k] / instances[k]) if instances[k] else math.nan,
        )
        for k, entry in enumerate(classes)
    ]


def mean_average_precision(rows: Sequence[ScoredClass]) -> float:
    """The mean over the classes with ground truth."""
    return float(np.nanmean([row.ap for row in rows]))


def table_text(rows: Sequence[ScoredClass]) -> str:
    """The table as CSV; undefined numbers are blank."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(TABLE_COLUMNS)
    for row in rows:
        writer.writerow(
            ("" if math.isnan(value) else f"{value:.6f}") if isinstance(value, float) else value
            for value in row
        )
    return stream.getvalue()


def worst_first(rows: Sequence[ScoredClass]) -> list[int]:
    """The class ids with ground truth, lowest AP first, of equal ones the one with most boxes."""
    with_truth = [k for k, row in enumerate(rows) if not math.isnan(row.ap)]
    order = sorted(with_truth, key=lambda k: (rows[k].ap, -rows[k].boxes - rows[k].group_of, k))
    return [k + 1 for k in order]


def draw_curves(scored: Scored, rows: Sequence[ScoredClass], class_ids: Sequence[int]) -> bytes:
    """Draws precision over recall of at most `CURVES_PER_PAGE` classes in a grid, as PNG."""
    num_rows = math.ceil(len(class_ids) / _COLUMNS)
    figure = Figure(figsize=(3 * _COLUMNS, 2.8 * num_rows), dpi=80)
    for place, class_id in enumerate(class_ids, start=1):
        precision, recall = precision_recall(scored, class_id)
        axes = figure.add_subplot(num_rows, _COLUMNS, place)
        monotone = np.maximum.accumulate(precision[::-1])[::-1]
        x, y = np.append(0.0, recall), np.append(monotone[:1], monotone)
        kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), 2000)).astype(int))
        axes.plot(x[kept], np.append(0.0, precision)[kept], color="0.75", linewidth=0.8)
        if len(monotone):
            axes.step(x[kept], y[kept], where="pre", linewidth=1.4)
        row = rows[class_id - 1]
        axes.set_title(
            f"{row.name[:24]}: AP {row.ap:.3f}, {row.boxes + row.group_of} boxes",
            fontsize=8,
            parse_math=False,
        )
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
        axes.xaxis.label.set_size(7)
        axes.yaxis.label.set_size(7)
        axes.tick_params(labelsize=7)
    figure.subplots_adjust(
        left=0.04, right=0.99, bottom=0.5 / num_rows / 2.8, top=1 - 0.3 / num_rows / 2.8,
        hspace=0.5, wspace=0.3,
    )  # fmt: skip
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def error_shares(truth: ChallengeTruth, detections: DetectionTable) -> list[ErrorShare]:
    """The kinds of errors as TIDE has them, most frequent first, computed by hotcoco.

    The 100 best detections of an image count, as in TIDE, and only classes that are verified there.
    hotcoco's matching lets a detection try its second-best box, so a few duplicates of the
    challenge are true positives here.
    """
    num_images, num_classes = truth.verified.shape
    images = [{"id": i, "width": 1, "height": 1} for i in range(1, num_images + 1)]
    boxes = boxes_to_xywh(truth.boxes)
    annotations = [
        {
            "id": row + 1,
            "image_id": int(truth.image_indices[row]) + 1,
            "category_id": int(truth.classes[row]),
            "bbox": boxes[row].tolist(),
            "area": float(boxes[row, 2] * boxes[row, 3]),
            "iscrowd": 0,
            "is_group_of": bool(truth.is_group_of[row]),
        }
        for row in range(len(boxes))
    ]
    categories = [{"id": k, "name": str(k)} for k in range(1, num_classes + 1)]
    ground = hotcoco.COCO({"images": images, "annotations": annotations, "categories": categories})
    rows = countable_rows(truth, detections)
    rows = first_of_keys(rows, detections.image_indices[rows], _TIDE_PER_IMAGE)
    if not len(rows):
        missed = ErrorShare("Miss", len(boxes), 1.0, None)
        return [
            missed,
            *(ErrorShare(kind, 0, 0.0, 0.0) for kind in TIDE_MEANINGS if kind != "Miss"),
        ]
    table = np.column_stack(
        [
            detections.image_indices[rows] + 1,
            boxes_to_xywh(detections.boxes[rows]),
            detections.scores[rows],
            detections.classes[rows],
        ]
    )
    evaluator = hotcoco.COCOeval(ground, ground.load_res(table), "bbox", oid_style=True)
    evaluator.params.max_dets = [_TIDE_PER_IMAGE]
    evaluator.evaluate()
    found = evaluator.tide_errors()
    total = max(sum(found["counts"].values()), 1)
    shares = [
        ErrorShare(
            kind,
            found["counts"][kind],
            found["counts"][kind] / total,
            None if kind == "Miss" else found["delta_ap"][kind],
        )
        for kind in TIDE_MEANINGS
    ]
    return sorted(shares, key=lambda share: -share.number)
