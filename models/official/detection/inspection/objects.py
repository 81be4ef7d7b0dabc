"""The objects of many images as columns: those that were found, and those that are there."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.class_list import ClassEntry

_NUM_SHOWN = 10


class InspectionError(SubmissionError):
    """An input or the output cannot be used; the message says what to do."""


class Objects(NamedTuple):
    """Objects of I images, n of all of them, ordered by image and within one by falling score."""

    image_ids: np.ndarray  # [I] str, rising, each once
    images: np.ndarray  # [n] int64, row in `image_ids`
    class_ids: np.ndarray  # [n] int32, 1-based
    boxes: np.ndarray  # [n, 4] float64, y1 x1 y2 x2, fractions of the picture
    scores: np.ndarray  # [n] float64 in 0..1; 1 where it is ground truth
    is_group: np.ndarray  # [n] bool: ground truth of a region with any number of objects

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
) -> Objects:
    """Puts images by rising id and their objects by falling score; equal ones stay as they come.

    Args:
        image_ids: I ids in any order, each once.
        images: [n] row in `image_ids`.
        class_ids: [n].
        boxes: [n, 4].
        scores: [n].
        is_group: [n].
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
    )


def take_images(objects: Objects, image_ids: np.ndarray) -> Objects:
    """The objects of some images only; an image that has no objects, or is unknown, has none.

    Args:
        objects: of any images.
        image_ids: [J] str, rising, each once.
    """
    if not len(image_ids):
        rows = np.zeros(0, np.int64)
        return Objects(image_ids, rows, *(column[rows] for column in objects[2:]))
    places = np.minimum(np.searchsorted(image_ids, objects.image_ids), len(image_ids) - 1)
    is_wanted = image_ids[places] == objects.image_ids
    rows = np.flatnonzero(is_wanted[objects.images])
    images = places[objects.images[rows]]
    return Objects(image_ids, images, *(column[rows] for column in objects[2:]))


def match_classes(
    own: Sequence[ClassEntry], wanted: Sequence[ClassEntry], what: str, other: str
) -> np.ndarray:
    """[C + 1] int32: the class id in `wanted` of each class id in `own`; 0 stays 0.

    Args:
        own: C classes.
        wanted: the same classes, in whatever order.
        what: where `own` comes from, for messages.
        other: where `wanted` comes from.

    Raises:
        InspectionError: they are other classes, by their identifiers.
    """
    places = {entry.identifier: place for place, entry in enumerate(wanted, 1)}
    lacking = [entry.identifier for entry in own if entry.identifier not in places]
    own_names = {entry.identifier for entry in own}
    extra = [entry.identifier for entry in wanted if entry.identifier not in own_names]
    if lacking or extra:
        differing = [
            f"only in {source}: {name_some(names)}"
            for source, names in ((what, lacking), (other, extra))
            if names
        ]
        raise InspectionError(
            f"{what} and {other} have other classes, so they cannot be compared; "
            + "; ".join(differing)
        )
    return np.array([0, *(places[entry.identifier] for entry in own)], np.int32)


def name_some(names: Sequence[str]) -> str:
    """Names the first ten, and says how many more there are."""
    more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more
