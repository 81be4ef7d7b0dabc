"""Formats the detections of images as the rows of a submission."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from tpudet.detection.ops.numpy_masks import Rle, mask_area
from tpudet.detection.submission.ancestors import AncestorTable
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.mask_rewrite import add_mask_ancestors
from tpudet.detection.submission.mask_rows import MaskPrediction, MaskRow
from tpudet.detection.submission.mask_text import encode_mask
from tpudet.detection.submission.open_images_csv import format_predictions
from tpudet.trainkit.class_list import ClassEntry, class_ids, match_entries
from tpudet.trainkit.errors import listing

SUMMARY = {
    "added": "of them ancestors of others",
    "empty": "images without any prediction",
    "unreadable": "images that inference could not read; their rows are empty",
    "clipped": "predictions clipped to the image",
    "without_area": "predictions left out, without area inside the image",
    "other_classes": "predictions left out, of classes that --classes lacks",
}


class DetectedImage(Protocol):
    """The n detections of one image."""

    @property
    def labels(self) -> np.ndarray:
        """[n] int, 1-based row of the class list."""
        ...

    @property
    def scores(self) -> np.ndarray:
        """[n] float."""
        ...

    @property
    def boxes_normalized(self) -> np.ndarray:
        """[n, 4] x1 y1 x2 y2, fractions of the image."""
        ...

    @property
    def masks(self) -> list[Rle] | None:
        """The n masks of the whole image, or None."""
        ...


def submission_rows(
    images: Iterable[tuple[str, DetectedImage | None]],
    counts: Counter[str],
    *,
    identifiers: Sequence[str],
    ancestors: AncestorTable | None = None,
) -> Iterator[tuple[str, str]]:
    """Yields (image id, prediction string) of each image, in their order.

    Args:
        images: with their ids; None for one that could not be read, which gets an empty string,
            because a submission must name every image.
        counts: is updated: `predictions` and the keys of SUMMARY.
        identifiers: the label of each class, empty for a class to leave out.
        ancestors: a table that begins with the identifiers which are not empty; None adds none.
    """
    kept = [identifier for identifier in identifiers if identifier]
    is_kept = np.array([False, *map(bool, identifiers)])
    numbers = np.cumsum(is_kept)  # from classes to rows of `kept`, both from 1
    for image_id, image in images:
        if image is None:
            counts["unreadable"] += 1
            yield image_id, ""
            continue
        chosen = is_kept[image.labels]
        row = format_predictions(
            kept,
            numbers[image.labels[chosen]],
            image.scores[chosen],
            image.boxes_normalized[chosen],
            ancestors,
        )
        counts["predictions"] += row.kept
        counts["added"] += row.kept + row.without_area - int(chosen.sum())
        counts["clipped"] += row.clipped
        counts["without_area"] += row.without_area
        counts["other_classes"] += len(chosen) - int(chosen.sum())
        counts["empty"] += not row.text
        yield image_id, row.text


def mask_rows(
    images: Iterable[tuple[str, DetectedImage | None]],
    counts: Counter[str],
    *,
    identifiers: Sequence[str],
    ancestors: AncestorTable | None = None,
) -> Iterator[MaskRow]:
    """Yields the rows of a submission of masks, one per image, in their order.

    Arguments as of `submission_rows`; masks without a pixel are left out. The size of an image
    without predictions is unknown and written as 1 x 1.
    """
    numbers = {label: place for place, label in enumerate(ancestors.labels)} if ancestors else {}
    for image_id, image in images:
        found: list[MaskPrediction] = []
        size = (1, 1)
        if image is None:
            counts["unreadable"] += 1
        else:
            columns = zip(image.labels.tolist(), image.scores, image.masks or (), strict=True)
            for label, score, mask in columns:
                size = tuple(mask["size"])
                identifier = identifiers[int(label) - 1]
                if not identifier:
                    counts["other_classes"] += 1
                elif not mask_area(mask):
                    counts["without_area"] += 1
                else:
                    text = encode_mask(mask)
                    found.append(MaskPrediction(identifier, float(score), text))
            counts["empty"] += not found
        own = len(found)
        if ancestors is not None:
            found = list(add_mask_ancestors(tuple(found), ancestors, numbers))
        counts["added"] += len(found) - own
        counts["predictions"] += len(found)
        yield MaskRow(image_id, width=size[1], height=size[0], predictions=tuple(found))


class WantedClasses(NamedTuple):
    """Where the predicted classes are in the list of wanted ones."""

    identifiers: tuple[str, ...]  # there, of each predicted class; empty if it is not there
    remark: str  # on identifiers that have other names there; or empty


def find_wanted(predicted: Sequence[ClassEntry], wanted: Sequence[ClassEntry]) -> WantedClasses:
    """Finds the predicted classes in a list that may number them differently (`match_entries`).

    Names decide, so that a detector of `cat` can be given the MIDs of a class list. Where a name is
    not there and the identifier is, it counts as another spelling, unless a class that is found by
    its name shows that the list gives the same identifiers to other classes.

    Raises:
        SubmissionError: no class is found, or two are the same one.
    """
    rows, contradictions = match_entries(predicted, wanted)
    ids = class_ids(wanted)  # the identifier of a predicted class may be the name there
    places = [
        ids.get(entry.identifier, 0) if row is None else row + 1
        for entry, row in zip(predicted, rows, strict=True)
    ]
    theirs = {entry.identifier for entry in wanted}
    is_numbered_otherwise = any(
        place and entry.identifier in theirs and entry.identifier != wanted[place - 1].identifier
        for entry, place in zip(predicted, places, strict=True)
    )
    if is_numbered_otherwise:
        places = [0 if row in contradictions else place for row, place in enumerate(places)]
    for i, place in enumerate(places):
        if place and place in places[:i]:
            pair = (predicted[places.index(place)], predicted[i])
            both = " and ".join(f"{entry.identifier} ({entry.name})" for entry in pair)
            raise SubmissionError(f"{both} are both its {wanted[place - 1].identifier}")
    if not any(places):
        raise SubmissionError(
            f"it has none of the predicted classes, neither {predicted[0].identifier} nor "
            f"{predicted[0].name}, to begin with"
        )
    identifiers = tuple(wanted[place - 1].identifier if place else "" for place in places)
    if not contradictions:
        return WantedClasses(identifiers, "")
    what = "found by their identifiers, with other names there"
    if is_numbered_otherwise:
        what = "left out, because their identifiers mean other classes there"
    remark = f"{len(contradictions)} classes {what}: {listing(contradictions.values())}"
    return WantedClasses(identifiers, remark)
