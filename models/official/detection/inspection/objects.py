"""Columnar tables of predicted and ground-truth objects."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.class_list import ClassEntry, match_entries
from tpudet.trainkit.errors import listing


class InspectionError(SubmissionError):
    """An input or the output cannot be used."""


class Objects(NamedTuple):
    """The n objects of I images, by image and within it in descending order of score."""

    image_ids: np.ndarray  # [I] str, in ascending order, each once
    images: np.ndarray  # [n] int64, row in `image_ids`
    class_ids: np.ndarray  # [n] int32, 1-based
    boxes: np.ndarray  # [n, 4] float64, y1 x1 y2 x2, fractions of the image
    scores: np.ndarray  # [n] float64 in 0..1; 1 for ground truth
    is_group: np.ndarray  # [n] bool: a ground-truth region with any number of objects
    # [n] object: of the whole image, COCO RLE or the content of a PNG file, or None
    masks: np.ndarray | None = None

    def of_image(self, row: int) -> slice:
        """The objects of one image."""
        first, last = np.searchsorted(self.images, [row, row + 1])
        return slice(int(first), int(last))


def order_objects(
    image_ids: Sequence[str] | np.ndarray,
    images: np.ndarray,
    class_ids: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray,
    is_group: np.ndarray,
    masks: np.ndarray | None = None,
) -> Objects:
    """Sorts images by id, their objects in descending order of score; equal ones keep their order.

    Args:
        image_ids: I ids in any order, each once.
        images: [n] row in `image_ids`.
        class_ids: [n].
        boxes: [n, 4].
        scores: [n].
        is_group: [n].
        masks: [n], or None.
    """
    ids = np.asarray(image_ids, dtype=str)
    order = np.argsort(ids, kind="stable")
    places = np.empty(len(ids), np.int64)
    places[order] = np.arange(len(ids))
    rows = places[images.astype(np.int64)]
    by_score = np.lexsort((-scores.astype(np.float64), rows))
    return Objects(
        ids[order],
        rows[by_score],
        class_ids[by_score].astype(np.int32),
        boxes[by_score].astype(np.float64),
        scores[by_score].astype(np.float64),
        is_group[by_score].astype(bool),
        None if masks is None else masks[by_score],
    )


def take_images(objects: Objects, image_ids: np.ndarray) -> Objects:
    """Returns the objects of some images only; an unknown image has none.

    Args:
        objects: of any images.
        image_ids: [J] str, in ascending order, each once.
    """
    if not len(image_ids):
        return _take_rows(objects, np.zeros(0, np.int64), image_ids, np.zeros(0, np.int64))
    places = np.minimum(np.searchsorted(image_ids, objects.image_ids), len(image_ids) - 1)
    is_wanted = image_ids[places] == objects.image_ids
    rows = np.flatnonzero(is_wanted[objects.images])
    images = places[objects.images[rows]]
    return _take_rows(objects, rows, image_ids, images)


def _take_rows(
    objects: Objects, rows: np.ndarray, image_ids: np.ndarray, images: np.ndarray
) -> Objects:
    return Objects(
        image_ids,
        images,
        objects.class_ids[rows],
        objects.boxes[rows],
        objects.scores[rows],
        objects.is_group[rows],
        None if objects.masks is None else objects.masks[rows],
    )


def class_permutation(
    own: Sequence[ClassEntry], wanted: Sequence[ClassEntry], what: str, other: str
) -> np.ndarray:
    """[C + 1] int32: the class id in `wanted` of each class id in `own`; 0 stays 0.

    Args:
        own: C classes.
        wanted: the same classes, in any order and perhaps with other identifiers.
        what: the source of `own`, for messages.
        other: the source of `wanted`.

    Raises:
        InspectionError: one has classes that the other lacks, or an identifier means another class.
    """
    rows, contradictions = match_entries(own, wanted)
    if contradictions:
        raise InspectionError(
            f"{what} and {other} call the same class differently, so they cannot be compared: "
            f"{listing(contradictions.values())}"
        )
    lacking = [entry.identifier for entry, row in zip(own, rows, strict=True) if row is None]
    extra = [entry.identifier for row, entry in enumerate(wanted) if row not in rows]
    if lacking or extra:
        differing = [
            f"only in {source}: {listing(names)}"
            for source, names in ((what, lacking), (other, extra))
            if names
        ]
        raise InspectionError(
            f"{what} and {other} have other classes, so they cannot be compared; "
            + "; ".join(differing)
        )
    return np.array([0, *(row + 1 for row in rows if row is not None)], np.int32)
