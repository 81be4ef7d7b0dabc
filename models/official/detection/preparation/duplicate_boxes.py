"""Finds predicted boxes that repeat an existing box, or a surer prediction."""

import numpy as np
import pandas as pd
from tqdm import tqdm

from detection.preparation.annotations import COORDINATES
from detection.preparation.box_csv import PROGRESS_DELAY

# What a prediction repeats.
DISTINCT, OF_EXISTING, OF_PREDICTION = 0, 1, 2


def distinct_boxes(found: pd.DataFrame, existing: pd.DataFrame, *, max_iou: float) -> np.ndarray:
    """Finds the predictions that repeat another box of the same image and label.

    The surer prediction comes first; one counts as a repetition where its intersection over union
    with an existing box, or with a prediction that is kept, is above `max_iou`.

    Args:
        found: image, label, score, y1 x1 y2 x2 of the predictions.
        existing: image, label, y1 x1 y2 x2 of the boxes that are there.
        max_iou: in 0..1; 1 keeps all.

    Returns:
        [predictions] DISTINCT, OF_EXISTING or OF_PREDICTION: what it repeats.
    """
    repeats = np.full(len(found), DISTINCT)
    keys = ["image", "label"]
    both = pd.concat([found[keys], existing[keys]], ignore_index=True)
    groups = both.groupby(keys, sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(-found["score"].to_numpy(), kind="stable")
    members = [*order, *range(len(found), len(both))]  # predictions by falling score come first
    corners = np.concatenate([table[list(COORDINATES)].to_numpy() for table in (found, existing)])
    of_group: dict[int, list[int]] = {}
    for row in map(int, members):
        of_group.setdefault(groups[row], []).append(row)
    for rows in tqdm(of_group.values(), desc="comparing", unit="group", delay=PROGRESS_DELAY):
        if len(rows) > 1:
            predicted = [row for row in rows if row < len(found)]
            others = corners[rows[len(predicted) :]]
            repeats[predicted] = _repeats_in_group(corners[predicted], others, max_iou)
    return repeats


def _repeats_in_group(found: np.ndarray, existing: np.ndarray, max_iou: float) -> np.ndarray:
    """For boxes by falling score, [n, 4], and existing ones, [m, 4]: what each repeats, [n]."""
    repeats = np.full(len(found), DISTINCT)
    repeats[(_iou(found, existing) > max_iou).any(axis=1)] = OF_EXISTING
    overlaps = _iou(found, found) > max_iou
    for row in range(len(found)):
        if repeats[row] == DISTINCT:
            later = np.flatnonzero(overlaps[row, row + 1 :]) + row + 1
            repeats[later[repeats[later] == DISTINCT]] = OF_PREDICTION
    return repeats


def _iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union [m, n] of boxes [m, 4] and [n, 4]; NaN where either is not finite."""
    starts = np.maximum(first[:, None, :2], second[None, :, :2])
    ends = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(ends - starts, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
