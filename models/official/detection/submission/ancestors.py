"""Repeats predictions, as arrays, for every ancestor of their label."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.fusion.printed_numbers import printed_units
from tpudet.detection.submission.hierarchy import Hierarchy


class AncestorTable(NamedTuple):
    """The ancestors of L labels by number, a label's number being its place in `labels`."""

    labels: tuple[str, ...]  # L of them
    starts: np.ndarray  # [L + 1] int64; label k has ancestors numbers[starts[k]:starts[k + 1]]
    numbers: np.ndarray  # int32, parents before their own parents
    is_parent: np.ndarray  # [L + 1] bool; the last one, False, is for the number -1


def ancestor_table(hierarchy: Hierarchy, first_labels: Sequence[str] = ()) -> AncestorTable:
    """Numbers `first_labels` and then every other label of the hierarchy.

    Args:
        hierarchy: a label that it lacks has no ancestors.
        first_labels: each once.
    """
    labels = tuple(dict.fromkeys((*first_labels, *hierarchy.labels)))
    places = {label: number for number, label in enumerate(labels)}
    known = hierarchy.parents.keys()
    ancestors = [hierarchy.ancestors(label) if label in known else () for label in labels]
    return AncestorTable(
        labels,
        np.cumsum([0, *map(len, ancestors)]),
        np.array([places[label] for above in ancestors for label in above], np.int32),
        np.array([bool(hierarchy.children.get(label)) for label in labels] + [False]),
    )


def with_ancestors(
    table: AncestorTable,
    images: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    boxes: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Adds each prediction's ancestors behind it, with its box and score.

    Of a label that has descendants an image keeps each box (as it is printed) once: with the best
    score, and of equal scores the first. Predictions of leaves, and of labels that the hierarchy
    lacks, are unchanged. Adding ancestors twice is the same as adding them once.

    Args:
        table: from `ancestor_table`.
        images: [n] which image, in ascending order.
        labels: [n] numbers of the table, -1 for a label that is not in it.
        scores: [n].
        boxes: [n, 4].

    Returns:
        [m] int64, which of the n predictions gives box and score, in ascending order; and [m] int32
        labels.
    """
    counts = 1 + np.append(np.diff(table.starts), 0)[labels]
    rows = np.repeat(np.arange(len(labels)), counts)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    found = labels[rows].astype(np.int32)
    added = np.flatnonzero(places)
    found[added] = table.numbers[table.starts[found[added]] + places[added] - 1]
    columns = [images, *printed_units(boxes).T]
    if not len(shared := _repeated(columns)):  # then no label and box can be repeated either
        return rows, found
    in_question = np.zeros(len(labels), bool)
    in_question[shared] = True
    above = np.flatnonzero(table.is_parent[found] & in_question[rows])
    own = rows[above]
    kept = np.ones(len(rows), bool)
    kept[above] = _best_of_equal([found[above], *(c[own] for c in columns)], scores[own])
    return rows[kept], found[kept]


def _repeated(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Places, in ascending order, of all rows of [n] columns that are equal to another one.

    A few more are returned if different rows have equal hashes.
    """
    hashes = _hashes(columns)
    ordered = np.sort(hashes)
    return np.flatnonzero(np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]]))


def _best_of_equal(columns: Sequence[np.ndarray], scores: np.ndarray) -> np.ndarray:
    """[k] bool: of the rows of [k] columns that are equal, the first one of the best score."""
    hashes = _hashes(columns)
    order = np.argsort(hashes, kind="stable")
    first = _differs_from_before([hashes[order]])
    if (_differs_from_before([c[order] for c in columns]) & ~first).any():  # two hashes are equal
        order = np.lexsort(columns)
        first = _differs_from_before([c[order] for c in columns])
    group = np.cumsum(first) - 1
    best = np.maximum.reduceat(scores[order], np.flatnonzero(first)) if len(order) else scores
    winners = np.flatnonzero(scores[order] == best[group])
    chosen = np.zeros(len(scores), bool)
    chosen[order[winners[_differs_from_before([group[winners]])]]] = True
    return chosen


def _hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """[k] uint64, equal for equal rows of [k] columns of integers."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _differs_from_before(columns: Sequence[np.ndarray]) -> np.ndarray:
    """[k] bool: whether a row is the first, or differs from the row before it."""
    differs = np.zeros(len(columns[0]), bool)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return differs
