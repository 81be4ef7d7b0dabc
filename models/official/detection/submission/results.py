"""Detections of one image as entries of COCO results, lines of YOLO, or fields of a template."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.trainkit.class_list import ClassEntry

_FRACTION_DECIMALS, _PIXEL_DECIMALS, _SCORE_DECIMALS = 6, 3, 6
_NUMBER_DIGITS = 5  # of class numbers, each of which up to the largest is a line of classes.txt


class ImageIdentity(NamedTuple):
    """An image as results name it, with its size."""

    image_id: int | str
    height: int  # pixels; 0 if it is not needed
    width: int


class VisibleDetections(NamedTuple):
    """The n detections of an image that have area within it, and their rows among all."""

    rows: np.ndarray  # [n]
    labels: np.ndarray  # [n] class ids, from 1
    scores: np.ndarray  # [n]
    boxes_normalized: np.ndarray  # [n, 4] x1 y1 x2 y2 in 0..1


def visible_detections(
    labels: np.ndarray, scores: np.ndarray, boxes_normalized: np.ndarray, *, min_score: float
) -> VisibleDetections:
    """Clips boxes to the image, and leaves out those without area and those of low scores."""
    boxes = np.clip(boxes_normalized.astype(np.float64), 0, 1)
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    rows = np.flatnonzero(has_area & (scores >= min_score))
    return VisibleDetections(rows, labels[rows], scores[rows].astype(np.float64), boxes[rows])


def coco_entries(
    found: VisibleDetections,
    image: ImageIdentity,
    category_ids: Sequence[int],
    masks: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Returns entries of a COCO results JSON; `bbox` is x, y, width, height in pixels.

    Args:
        found: the detections.
        image: its size is needed.
        category_ids: C, in the order of the class list.
        masks: COCO RLE of all detections of the image, or None.
    """
    boxes = found.boxes_normalized * np.tile((image.width, image.height), 2)
    boxes_xywh = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]).round(_PIXEL_DECIMALS)
    entries = [
        {"image_id": image.image_id, "category_id": category_ids[label - 1], "bbox": box}
        | {"score": round(score, _SCORE_DECIMALS)}
        for label, box, score in zip(
            found.labels.tolist(), boxes_xywh.tolist(), found.scores.tolist(), strict=True
        )
    ]
    if masks is not None:
        for entry, row in zip(entries, found.rows.tolist(), strict=True):
            entry["segmentation"] = masks[row]
    return entries


def yolo_lines(
    found: VisibleDetections, class_numbers: Sequence[int], *, with_scores: bool = True
) -> str:
    """Returns a label file: a line `class cx cy width height score` per detection, in fractions."""
    x1, y1, x2, y2 = found.boxes_normalized.T
    columns = np.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, found.scores], axis=1)
    columns = columns if with_scores else columns[:, :4]
    return "".join(
        f"{class_numbers[label - 1]} {' '.join(f'{value:.6f}' for value in row)}\n"
        for label, row in zip(found.labels.tolist(), columns.tolist(), strict=True)
    )


def yolo_class_numbers(classes: Sequence[ClassEntry]) -> list[int]:
    """The class numbers, from 0: those of a YOLO data set if the identifiers are such."""
    texts = [entry.identifier for entry in classes]
    if "0" in texts and all(text.isdecimal() and len(text) <= _NUMBER_DIGITS for text in texts):
        numbers = [int(text) for text in texts]
        if [str(number) for number in numbers] == texts:
            return numbers
    return list(range(len(classes)))


def yolo_class_names(classes: Sequence[ClassEntry]) -> str:
    """Returns a classes.txt: the name of class number N in line N, from 0."""
    names = dict(zip(yolo_class_numbers(classes), (entry.name for entry in classes), strict=True))
    return "".join(f"{names.get(n, f'unused_{n}')}\n" for n in range(max(names) + 1))


def template_fields(
    found: VisibleDetections, image: ImageIdentity, classes: Sequence[ClassEntry], *, pixels: bool
) -> list[dict[str, Any]]:
    """Returns the fields of each detection for a template, see `row_template`."""
    scale = (image.width, image.height) if pixels else (1, 1)
    decimals = _PIXEL_DECIMALS if pixels else _FRACTION_DECIMALS
    boxes = found.boxes_normalized * np.tile(scale, 2)
    x1, y1, x2, y2 = boxes.T
    columns = {"x": x1, "y": y1, "w": x2 - x1, "h": y2 - y1, "x1": x1, "y1": y1}
    columns |= {"x2": x2, "y2": y2, "cx": (x1 + x2) / 2, "cy": (y1 + y2) / 2}
    numbers = {name: values.round(decimals).tolist() for name, values in columns.items()}
    fields = []
    for row, label in enumerate(found.labels.tolist()):
        entry = classes[label - 1]
        named = {"label": entry.identifier, "name": entry.name, "class_id": label}
        score = round(found.scores[row].item(), _SCORE_DECIMALS)
        sides = {name: values[row] for name, values in numbers.items()}
        fields.append({**named, "score": score, **sides})
    return fields
