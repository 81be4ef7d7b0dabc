"""Selects the images of a source for each set: by class, by split or fold, and with copies."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.records.balance import BalancePlan, plan_copies
from tpudet.detection.preparation.records.plan import order_by_id
from tpudet.detection.preparation.records.stratification import assign_folds, assign_fractions
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    missing_image,
    take_images,
)
from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.detection.preparation.sources.checks import check_boxes, check_labels, label_class_ids
from tpudet.detection.preparation.sources.input_files import missing_files
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.digests import division_digest

_BLOCK = 1 << 16  # images whose boxes are checked at once
_MAX_RECORDS = 10**8  # of a balanced set; their order is in memory several times


class Subset(NamedTuple):
    """The images of one set."""

    split: str
    output: str  # converted/<part>
    fold: int | None  # None: no folds
    rows: np.ndarray  # [images] row numbers, ascending
    division: str | None = None  # digest of which image is in which fold, of all folds


def split_by_fractions(
    annotations: Annotations,
    rows: np.ndarray,
    *,
    output: str,
    fractions: Mapping[str, float],
    seed: int,
) -> list[Subset]:
    """Divides images into splits, each with its share of every class, as closely as possible.

    The assignment depends on the images' ids, their classes and the seed alone.

    Args:
        annotations: all images.
        rows: the images to divide.
        output: converted/<part>, the same for all splits.
        fractions: share of each split; their sum is 1. A single split takes all images.
        seed: of the assignment.

    Raises:
        UserError: there are fewer images than splits, or a split would be empty.
    """
    if len(fractions) == 1:
        return [Subset(split, output, None, rows) for split in fractions]
    rows = rows[order_by_id(annotations, rows)]
    images, classes = labelled_images(annotations, rows)
    shares = list(fractions.values())
    owners = assign_fractions(len(rows), images, classes, fractions=shares, seed=seed)
    subsets = []
    for number, (split, fraction) in enumerate(fractions.items()):
        own = np.sort(rows[owners == number])
        if len(own) == 0:
            raise UserError(f"{split}={fraction:g} of {len(rows)} images is less than one image.")
        subsets.append(Subset(split, output, None, own))
    return subsets


def split_by_folds(
    annotations: Annotations,
    rows: np.ndarray,
    *,
    output: str,
    num_folds: int,
    fold: int | None,
    seed: int,
) -> list[Subset]:
    """As `split_by_fractions`, for folds: each has its own images as val, all others as train.

    Args:
        annotations: all images.
        rows: the images to divide.
        output: converted/<part>; the sets of fold N are written to `<output>_fold_<N>`.
        num_folds: from 2.
        fold: only this fold, from 0; None means all.
        seed: of the assignment.

    Raises:
        UserError: fewer images than folds.
    """
    if len(rows) < num_folds:
        raise UserError(
            f"--folds {num_folds}: {len(rows)} images cannot be split into {num_folds} folds; give "
            f"{len(rows)} at most."
        )
    rows = rows[order_by_id(annotations, rows)]
    images, classes = labelled_images(annotations, rows)
    owners = assign_folds(len(rows), images, classes, num_folds=num_folds, seed=seed)
    files = annotations.images["file"].iloc[rows]
    division = division_digest(dict(zip(files, owners.tolist(), strict=True)))
    return [
        Subset(
            split, f"{output.rstrip('/')}_fold_{number}", number, np.sort(rows[chosen]), division
        )
        for number in (range(num_folds) if fold is None else (fold,))
        for split, chosen in (("train", owners != number), ("val", owners == number))
    ]


def select_classes(
    annotations: Annotations, classes: tuple[ClassEntry, ...], *, keep_all_images: bool
) -> Annotations:
    """Returns the boxes of some classes, with the images that have one or with all images.

    Raises:
        UserError: no box belongs to one of the classes.
    """
    annotations = annotations._replace(classes=classes)
    kept = label_class_ids(annotations.boxes["label"], annotations.class_ids()) > 0
    if not kept.any():
        raise UserError(
            f"None of the {len(kept)} boxes belongs to the {len(classes)} listed class(es), such "
            f"as '{classes[0].identifier}'; their labels are like "
            f"'{annotations.boxes['label'].astype(str).min()}'."
        )
    annotations = annotations._replace(boxes=annotations.boxes[kept].reset_index(drop=True))
    if keep_all_images:
        return annotations
    held = take_images(annotations, np.unique(annotations.boxes["image"]))
    return held._replace(findings=annotations.findings)


def leave_out_missing(
    annotations: Annotations, image_directories: Sequence[str], *, allow_empty: bool
) -> tuple[Annotations, np.ndarray]:
    """Checks that every image file exists, before images are divided or copied.

    Args:
        annotations: all images.
        image_directories: folders to search.
        allow_empty: also leave out all images of a class.

    Returns:
        The annotations with a finding for each missing file, and the rows of the other images.

    Raises:
        UserError: all files are missing, or all of a class.
    """
    files = annotations.images["file"]
    missing = files.isin(missing_files(image_directories, files.tolist())).to_numpy()
    if missing.all():
        raise UserError(
            f"None of the {len(files)} image files, such as {files.iloc[0]}, is in "
            f"{' or '.join(image_directories)}."
        )
    if not allow_empty:
        _require_classes(annotations, missing)
    boxes = np.bincount(annotations.boxes["image"], minlength=len(files))
    found = [missing_image(files.iloc[row], boxes[row]) for row in np.flatnonzero(missing)]
    annotations = annotations._replace(findings=(*annotations.findings, *found))
    return annotations, np.flatnonzero(~missing)


def _require_classes(annotations: Annotations, missing: np.ndarray) -> None:
    """Raises if every image with a box of some class is missing."""
    labels = label_class_ids(annotations.boxes["label"], annotations.class_ids())
    is_missing = missing[annotations.boxes["image"].to_numpy()]
    count = len(annotations.classes) + 1
    annotated = np.bincount(labels, minlength=count)[1:]
    present = np.bincount(labels[~is_missing], minlength=count)[1:]
    lost = np.flatnonzero((annotated > 0) & (present == 0))
    if lost.size:
        names = listing(f"{annotations.classes[k].name} ({annotated[k]})" for k in lost)
        files = annotations.images["file"]
        raise UserError(
            f"All boxes of {names} would be lost: {missing.sum()} of {len(files)} image files are "
            f"missing, such as {files[missing].iloc[0]}. Fetch them, or pass --allow_empty."
        )


def labelled_images(annotations: Annotations, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which images have which classes.

    Boxes that fail the checks do not count, nor do regions to ignore: nothing is learned of their
    class.

    Returns:
        [boxes] position of each box's image in `rows`, and [boxes] class index, from 0.
    """
    images, classes = [], []
    class_ids = annotations.class_ids()
    blocks = range(0, len(rows), _BLOCK)
    for first in tqdm(blocks, desc="checking boxes", unit="block", delay=PROGRESS_DELAY):
        piece = take_images(annotations, rows[first : first + _BLOCK])
        files = piece.images["file"]
        sizes = piece.images[["height", "width"]].to_numpy(dtype=np.float64)
        frames = np.ones_like(sizes) if annotations.normalized else sizes
        labelled = check_labels(piece.boxes, files, class_ids)
        boxes = check_boxes(labelled.boxes, files, frames).boxes
        ignored = boxes["is_crowd"] | boxes.get("lacks_mask", False)
        boxes = boxes[~ignored]
        images.append(boxes["image"].to_numpy() + first)
        classes.append(boxes["class_id"].to_numpy() - 1)
    return np.concatenate(images), np.concatenate(classes)


def balance_images(
    annotations: Annotations,
    rows: np.ndarray,
    *,
    min_images_per_class: int,
    max_copies: int | None,
    seed: int,
) -> BalancePlan:
    """Plans how often each image of `rows` is written; `copies` has their order.

    The plan depends on the images' ids, their classes and the seed, not on the order of the rows.

    Raises:
        UserError: there would be too many copies.
    """
    order = order_by_id(annotations, rows)
    images, classes = labelled_images(annotations, rows[order])
    plan = plan_copies(
        len(rows),
        images,
        classes,
        num_classes=len(annotations.classes),
        min_images_per_class=min_images_per_class,
        max_copies=max_copies,
        seed=seed,
    )
    total = int(plan.copies.sum())
    if total > _MAX_RECORDS:
        raise UserError(
            f"A minimum of {min_images_per_class} images per class would write {len(rows)} images "
            f"{total:,} times, and {_MAX_RECORDS:,} at most are written: lower it, or limit the "
            "copies of an image by --max_copies."
        )
    return plan._replace(copies=plan.copies[np.argsort(order)])


def share_findings(annotations: Annotations, subsets: Sequence[Subset]) -> list[Annotations]:
    """Returns the annotations for each subset, with the reader's findings on its own images.

    Findings that concern no image of any subset, such as a missing file, go to the first split.
    """
    if not annotations.findings or len(subsets) == 1:
        return [annotations] * len(subsets)
    files = annotations.images["file"].to_numpy()
    owned = [set(files[subset.rows]) for subset in subsets]
    first_split = [n for n, subset in enumerate(subsets) if subset.split == subsets[0].split]
    shares: list[list[Finding]] = [[] for _ in subsets]
    for finding in annotations.findings:
        owners = [number for number, own in enumerate(owned) if finding.file in own]
        for number in owners or first_split:
            shares[number].append(finding)
    return [annotations._replace(findings=tuple(share)) for share in shares]
