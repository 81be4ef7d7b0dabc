"""The fusion algorithms in plain NumPy: the kernel's reference, and its substitute.

All work on the boxes of one class of one image. The score that an algorithm sees is `s = score * w`
with `w` the weight of the model divided by the largest weight, so equal weights change nothing and
no score exceeds 1. Boxes with `s` 0 (also of a model of weight 0) or below the threshold are left
out. Equal scores keep the order of the input: file, then position. IoU has no +1; boxes without
area overlap nothing and are kept.

- `hard`: the best box stays, every other with IoU > `iou` is removed; repeated with the rest.
- `soft_linear`, `soft_gaussian` (Soft-NMS, Bodla et al. 2017): the best box stays as it is; the
  score of every other is multiplied by 1 - IoU where IoU > `iou`, or by exp(-IoU**2 / sigma); boxes
  that fall below the threshold, or to 0, are removed; repeated with the best of the rest.
- `wbf` (weighted boxes fusion, Solovyev et al. 2019): in descending order of score, a box joins the
  cluster whose fused box it overlaps most, if with IoU > `iou`, else it opens a cluster; a fused
  box is the mean of its boxes weighted by s. The score is sum(s) / max(sum(w) of the boxes, sum(w)
  of all models). That is the paper's mean(s) * min(T, N) / N for T boxes and N models of equal
  weight, and stays within 0..1 for any weights. `ensemble-boxes` gives mean(s) * min(T, N) /
  sum(w), the same unless T > N or several boxes of one model meet under unequal weights, where it
  can exceed 1.
- `nmw` (non-maximum weighted): in descending order of score, a box joins the cluster whose best box
  it overlaps most, if with IoU > `iou`, else it opens a cluster; the fused box is the mean of its
  boxes weighted by s * IoU with the best box, the score that of the best box.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.fusion.blocks import Block, SettingsTable
from tpudet.detection.submission.fusion.plain_text import scan_string
from tpudet.detection.submission.fusion.settings import METHODS

Row = tuple[bytes, float, float, Sequence[float]]  # label, score, weight, box


class Boxes(NamedTuple):
    """n boxes of one class of one image."""

    coordinates: np.ndarray  # [n, 4] float64 x1 y1 x2 y2
    scores: np.ndarray  # [n] float64, times the weights
    weights: np.ndarray  # [n] float64, of their models

    def take(self, chosen: np.ndarray) -> "Boxes":
        """The boxes at some indices, or under a mask."""
        return Boxes(*(column[chosen] for column in self))


def iou(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """[n] IoU of box [4] with boxes [n, 4].

    Stated here and not in `ops.numpy_boxes`: its last bits are those of the kernel.
    """
    sides = np.minimum(box[2:], boxes[:, 2:]) - np.maximum(box[:2], boxes[:, :2])
    intersection = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    area = (box[2] - box[0]) * (box[3] - box[1])
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    union = area + areas - intersection
    return np.divide(intersection, union, out=np.zeros(len(boxes)), where=intersection > 0)


def suppress(
    boxes: Boxes, *, method: str, iou_threshold: float, sigma: float, threshold: float
) -> Boxes:
    """Hard NMS or Soft-NMS; results in descending order of score."""
    kept = []
    left = boxes
    while len(left.scores):
        best = int(np.argmax(left.scores))  # the first of equals
        kept.append(best_box := left.take(np.array([best])))
        left = left.take(np.arange(len(left.scores)) != best)
        overlaps = iou(best_box.coordinates[0], left.coordinates)
        if method == "soft_gaussian":
            # math.exp is the C library's, as in the kernel; np.exp has other last bits.
            factors = np.array([math.exp(o * o * (-1 / sigma)) for o in overlaps.tolist()])
        else:
            softened = 1 - overlaps if method == "soft_linear" else np.zeros_like(overlaps)
            factors = np.where(overlaps > iou_threshold, softened, 1.0)
        left = left._replace(scores=left.scores * factors)
        left = left.take((left.scores >= threshold) & (left.scores > 0))
    return _join(kept)


def fuse_clusters(
    boxes: Boxes, *, method: str, iou_threshold: float, threshold: float, total_weight: float
) -> Boxes:
    """WBF or NMW; results in descending order of score.

    Args:
        boxes: of all models.
        method: `wbf` or `nmw`.
        iou_threshold: overlap above which a box joins a cluster.
        threshold: fused boxes with a lower score are left out.
        total_weight: of all models, with or without a box here.
    """
    clusters: list[list[int]] = []
    shares = boxes.scores.copy()
    centers = np.zeros((0, 4))
    for i in np.argsort(-boxes.scores, kind="stable"):
        overlaps = iou(boxes.coordinates[i], centers)
        if len(centers) and overlaps.max() > iou_threshold:
            match = int(np.argmax(overlaps))
            clusters[match].append(i)
            if method == "wbf":
                centers[match] = _mean(boxes.coordinates[clusters[match]], shares[clusters[match]])
            else:
                shares[i] = boxes.scores[i] * overlaps[match]
        else:
            clusters.append([i])
            centers = np.vstack([centers, boxes.coordinates[i]])
    scores = np.zeros(len(clusters))
    for j, members in enumerate(clusters):
        if method == "wbf":
            weight = max(_sum(boxes.weights[members]), total_weight)
            scores[j] = _sum(boxes.scores[members]) / weight
        else:
            scores[j] = boxes.scores[members[0]]
            if len(members) > 1:
                centers[j] = _mean(boxes.coordinates[members], shares[members])
    fused = Boxes(centers, scores, np.zeros(len(scores)))
    fused = fused.take(np.argsort(-scores, kind="stable"))
    return fused.take(fused.scores >= threshold)


def fuse_class(
    boxes: Boxes,
    *,
    method: str,
    iou_threshold: float,
    sigma: float,
    threshold: float,
    total_weight: float,
) -> Boxes:
    """Fuses the boxes of one class of one image; results in descending order of score.

    Args:
        boxes: in the order of the input: file, then position.
        method: one of METHODS.
        iou_threshold: see the docstring of this module.
        sigma: of `soft_gaussian`.
        threshold: lowest score, before and after fusion.
        total_weight: of all models, each relative to the largest.
    """
    boxes = boxes.take((boxes.scores > 0) & (boxes.scores >= threshold))
    if method in ("wbf", "nmw"):
        return fuse_clusters(
            boxes,
            method=method,
            iou_threshold=iou_threshold,
            threshold=threshold,
            total_weight=total_weight,
        )
    return suppress(
        boxes, method=method, iou_threshold=iou_threshold, sigma=sigma, threshold=threshold
    )


def fuse(
    block: Block, weights: np.ndarray, settings: SettingsTable, max_per_image: int
) -> tuple[bytes, int, int, np.ndarray, np.ndarray]:
    """Reads, fuses and prints the images of a block.

    Predictions are printed in descending order of score, equal ones by the first box of their
    class, then as fused.

    Args:
        block: the images.
        weights: [files] float64, the largest 1.
        settings: for all labels, and for some.
        max_per_image: how many of the best are printed; 0 for all.

    Returns:
        Text (no line for an image without a good row), predictions read and written, faults
        [pieces, 2] as from `plain_text.scan`, and predictions read by setting [1 + L].
    """
    arrays = block.arrays()
    numbers = {label: number for number, label in enumerate(settings.labels, 1)}
    faults = np.zeros((len(block.piece_files), 2), np.int64)
    seen = np.zeros(1 + len(settings.labels), np.int64)
    lines, num_written, total_weight = [], 0, _sum(weights)
    ends = block.piece_ends
    for image, (first, last) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        rows: list[Row] = []
        for piece in range(first, last):
            file = block.piece_files[piece]
            place = slice(block.piece_starts[piece], block.piece_stops[piece])
            faults[piece] = _read_piece(arrays[file], place, float(weights[file]), rows)
        if not (faults[first:last, 0] == 0).any():
            continue
        for label, *_ in rows:
            seen[numbers.get(label, 0)] += 1
        fused = _fuse_image(rows, numbers, settings, total_weight)[: max_per_image or None]
        num_written += len(fused)
        image_id = arrays[block.id_files[image]][block.id_starts[image] : block.id_stops[image]]
        lines.append(_line(image_id, fused))
    return b"".join(lines), int(seen.sum()), num_written, faults, seen


def _fuse_image(
    rows: Sequence[Row],
    numbers: dict[bytes, int],
    table: SettingsTable,
    total_weight: float,
) -> list[tuple[bytes, float, np.ndarray]]:
    """(label, score, box) in descending order of score."""
    fused = []
    for label, boxes in _by_class(rows, table.thresholds, numbers):
        number = numbers.get(label, 0)
        result = fuse_class(
            boxes,
            method=METHODS[table.methods[number]],
            iou_threshold=table.ious[number],
            sigma=table.sigmas[number],
            threshold=table.thresholds[number],
            total_weight=total_weight,
        )
        fused += [(label, *row) for row in zip(result.scores, result.coordinates, strict=True)]
    return sorted(fused, key=lambda row: -row[1])


def _read_piece(data: np.ndarray, place: slice, weight: float, rows: list[Row]) -> tuple[int, int]:
    """Appends to rows; returns the fault, or 0, and its place in the file."""
    found, fault, position = scan_string(data[place].tobytes())
    rows += [(label, score, weight, box) for _, label, score, box in found]
    return (fault, place.start + position) if fault else (0, 0)


def _line(image_id: np.ndarray, fused: Sequence[tuple[bytes, float, np.ndarray]]) -> bytes:
    parts = (b"%b %.5f %.5f %.5f %.5f %.5f" % (label, s, *box) for label, s, box in fused)
    return image_id.tobytes() + b"," + b" ".join(parts) + b"\n"


def _by_class(
    rows: Sequence[Row],
    thresholds: np.ndarray,
    numbers: dict[bytes, int],
) -> list[tuple[bytes, Boxes]]:
    """The boxes to fuse, class by class in the order of their first box."""
    classes: dict[bytes, list[tuple]] = {}
    for label, score, weight, box in rows:
        weighted = score * weight
        if weighted > 0 and weighted >= thresholds[numbers.get(label, 0)]:
            classes.setdefault(label, []).append((weighted, weight, *box))
    tables = ((label, np.array(members)) for label, members in classes.items())
    return [(label, Boxes(table[:, 2:], table[:, 0], table[:, 1])) for label, table in tables]


def _mean(coordinates: np.ndarray, shares: np.ndarray) -> np.ndarray:
    sums = [_sum(shares * coordinates[:, side]) for side in range(4)]
    return np.array(sums) / _sum(shares)


def _sum(values: np.ndarray) -> float:
    """The sum in order; np.sum adds in pairs, which gives other last bits than the kernel."""
    total = 0.0
    for value in values.tolist():
        total += value
    return total


def _join(parts: Sequence[Boxes]) -> Boxes:
    if not parts:
        return Boxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0))
    return Boxes(*(np.concatenate(column) for column in zip(*parts, strict=True)))
