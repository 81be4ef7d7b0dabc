"""Reads the ground truth of the Open Images Challenge and expands it up the hierarchy."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tpudet.detection.evaluation.open_images.metric import ChallengeTruth, expand
from tpudet.detection.evaluation.open_images.truth_csv import (
    ImageLabels,
    MaskTexts,
    TruthFileError,
    read_box_rows,
    read_image_labels,
)
from tpudet.detection.submission.hierarchy import Hierarchy, read_hierarchy_file
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_classes
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files.storage import open_file

# Fraction of the expanded boxes that are in the file already, from which the file looks expanded.
# Two real objects hardly ever have the same box.
_EXPANDED_SHARE = 0.5
_FEW_LABELS = 5


class LabelledTruth(NamedTuple):
    """Ground truth with its names. Boxes in 0..1 of the image, y1 x1 y2 x2."""

    truth: ChallengeTruth
    image_ids: np.ndarray  # [I] bytes, in ascending order
    classes: tuple[ClassEntry, ...]  # C
    masks: MaskTexts | None  # of the G boxes
    notes: tuple[str, ...]  # for the user, on how the files were read


def read_truth(
    path: str,
    *,
    hierarchy: str = "",
    image_labels: str = "",
    classes: str = "",
    with_masks: bool = False,
) -> LabelledTruth:
    """Reads ground truth and expands it.

    Args:
        path: see `truth_csv.read_box_rows`.
        hierarchy: the JSON; without one boxes and labels are not expanded.
        image_labels: see `truth_csv.read_image_labels`; without it the classes of an image's boxes
            are verified for it.
        classes: a class list. Only its classes are scored, and labels may be its names. Without
            one, all labels of the hierarchy and of the boxes are classes.
        with_masks: whether the boxes have masks.

    Raises:
        TruthFileError: boxes or labels are not usable.
        UserError: the hierarchy or the class list is not usable.
        OSError: a file cannot be opened.
    """
    rows = read_box_rows(_content(path), path, with_masks=with_masks)
    tree = read_hierarchy_file(hierarchy) if hierarchy else Hierarchy((), {}, {})
    labels = LabelNumbers(read_classes(classes) if classes else (), tree)
    notes = [*rows.notes, *_describe_missing(hierarchy, image_labels)]
    own = labels.numbers(rows.labels)
    places, expanded = expand(own, labels.relatives(tree.ancestors))
    verified = [(rows.image_ids[places], expanded)]
    if image_labels:
        found = read_image_labels(_content(image_labels), image_labels)
        labels.require_any(found.labels, image_labels)
        verified += expand_verified(found, labels, tree)
        if found.num_by_machines:
            notes.append(f"{found.num_by_machines} labels by machines left out of {image_labels}")
    entries, class_of = labels.classes()
    is_scored = class_of[expanded] > 0
    places, expanded = places[is_scored], expanded[is_scored]
    if not len(places):
        raise TruthFileError(f"{path}: no box is of a class that is scored")
    names = np.concatenate([rows.all_image_ids, *(ids for ids, _ in verified)])
    image_ids = np.unique(_as_bytes(pd.unique(names)))
    truth = ChallengeTruth(
        image_indices=_find(image_ids, rows.image_ids[places]),
        classes=class_of[expanded],
        boxes=rows.boxes[places],
        is_group_of=rows.is_group_of[places],
        verified=np.zeros((len(image_ids), len(entries) + 1), bool),
    )
    for ids, numbers in verified:
        truth.verified[_find(image_ids, ids), class_of[numbers]] = True
    truth = truth._replace(verified=truth.verified[:, 1:])  # column 0: labels that are not scored
    notes += labels.describe(own, class_of)
    notes += _describe_repeats(truth, len(own)) if hierarchy else []
    masks = rows.masks and MaskTexts(*(column[places] for column in rows.masks))
    return LabelledTruth(truth, image_ids, entries, masks, tuple(notes))


def _describe_missing(hierarchy: str, image_labels: str) -> Iterator[str]:
    if not hierarchy:
        yield "no --hierarchy: the boxes are taken to be expanded up it already"
    if not image_labels:
        yield (
            "no --image_labels: in each image only the classes of its boxes are scored, and the "
            "mAP is too high if others are verified there"
        )


class LabelNumbers:
    """Numbers all labels: first the class list, then the hierarchy, then others."""

    def __init__(self, entries: Sequence[ClassEntry], tree: Hierarchy) -> None:
        self._entries = tuple(entries)
        self._tree = tree
        self._numbers = {label: class_id - 1 for label, class_id in class_ids(entries).items()}
        self._labels = [entry.identifier for entry in entries]
        self.numbers(np.array(tree.labels, object))
        self._named = {self._numbers[label]: label for label in tree.labels}

    def require_any(self, labels: np.ndarray, path: str) -> None:
        """Raises a TruthFileError if a file has labels, and none of them has a number."""
        if len(labels) and self._numbers.keys().isdisjoint(labels.tolist()):
            raise TruthFileError(
                f"{path}: none of its labels is a class: its first is {str(labels[0])!r}, that of "
                f"the classes is {self._labels[0]!r}"
            )

    def numbers(self, labels: np.ndarray) -> np.ndarray:
        """[n] int64: the number of each of n labels (objects); a new one gets the next."""
        places, found = pd.factorize(labels, sort=True)
        for label in found.tolist():
            if label not in self._numbers:
                self._numbers[label] = len(self._labels)
                self._labels.append(label)
        return np.array([self._numbers[label] for label in found.tolist()], np.int64)[places]

    def relatives(self, steps: Callable[[str], Sequence[str]]) -> list[list[int]]:
        """For each label the numbers of its ancestors, or of what `steps` gives."""
        return [
            [self._numbers[other] for other in steps(self._named[number])]
            if number in self._named
            else []
            for number in range(len(self._labels))
        ]

    def classes(self) -> tuple[tuple[ClassEntry, ...], np.ndarray]:
        """The classes that are scored, and the class id of each label (0: not scored)."""
        entries = self._entries or tuple(ClassEntry(label, label) for label in self._labels)
        ids = np.zeros(len(self._labels), np.int64)
        ids[: len(entries)] = np.arange(1, len(entries) + 1)
        return entries, ids

    def describe(self, numbers: np.ndarray, class_of: np.ndarray) -> list[str]:
        """Notes on labels of boxes that are not scored, or not in the hierarchy."""
        found, counts = np.unique(numbers, return_counts=True)
        groups = [(class_of[found] == 0, "are not in the class list and not scored")]
        if self._named:
            outside = ~np.isin(found, list(self._named))
            groups.append((outside, "are not in the hierarchy and not expanded"))
        lines = []
        for chosen, what in groups:
            if chosen.any():
                names = [self._labels[number] for number in found[chosen]]
                lines.append(
                    f"{chosen.sum()} labels of {counts[chosen].sum()} boxes {what}: "
                    f"{listing(names, limit=_FEW_LABELS)}"
                )
        return lines


def _content(path: str) -> bytes:
    with open_file(path, "rb") as file:
        return file.read()


def _find(image_ids: np.ndarray, names: np.ndarray) -> np.ndarray:
    """[n] int64: the index of each name (str) among the ids (bytes)."""
    return np.searchsorted(image_ids, _as_bytes(names))


def _as_bytes(names: np.ndarray) -> np.ndarray:
    return np.array([name.encode() for name in names.tolist()] or [b""], "S")[: len(names)]


def expand_verified(
    found: ImageLabels, labels: LabelNumbers, tree: Hierarchy
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Expands positive labels to their ancestors and negative ones to their descendants.

    Returns:
        Image ids and label numbers, of the positive and of the negative ones.
    """
    numbers = labels.numbers(found.labels)
    parts = []
    for chosen, steps in (
        (found.is_positive, tree.ancestors),
        (~found.is_positive, tree.descendants),
    ):
        places, more = expand(numbers[chosen], labels.relatives(steps))
        parts.append((found.image_ids[chosen][places], more))
    return parts


def _describe_repeats(truth: ChallengeTruth, num_rows: int) -> list[str]:
    """Warns if the boxes that the expansion adds are in the file already."""
    columns = (truth.image_indices[:, None], truth.classes[:, None], truth.boxes)
    num_added = len(truth.classes) - num_rows
    _, counts = np.unique(np.concatenate(columns, axis=1), axis=0, return_counts=True)
    num_repeated = len(truth.classes) - len(counts)
    if num_added <= 0 or num_repeated < _EXPANDED_SHARE * num_added:
        return []
    return [
        f"WARNING: {num_repeated} of the {num_added} boxes that the hierarchy adds are in the file "
        "already. It looks expanded; leave --hierarchy out, or every object counts twice"
    ]
