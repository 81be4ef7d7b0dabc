"""Chooses images of one source: those of some classes, of each split or fold, and their copies."""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.open_images.folds import assign_folds, assign_fractions
from tpudet.detection.preparation.records.balance import BalancePlan, plan_copies
from tpudet.detection.preparation.records.plan import order_by_id
from tpudet.detection.preparation.sources.annotations import (
    Annotations,
    Finding,
    PreparationError,
    missing_image,
    take_images,
)
from tpudet.detection.preparation.sources.checks import check_boxes, check_labels, label_class_ids
from tpudet.detection.preparation.sources.input_files import missing_files
from tpudet.trainkit.class_list import ClassEntry

SPLITS = ("train", "val", "test")
_BLOCK = 1 << 16  # images whose boxes are checked at once


class Subset(NamedTuple):
    """Some of the images, to be written as one set."""

    split: str
    output: str  # converted/<part>
    fold: int | None  # None: no folds
    rows: np.ndarray  # [images] row numbers, ascending


def split_argument(text: str) -> dict[str, float]:
    """An argument type: `train`, or `train=0.8,val=0.2` -> the fraction of each split."""
    if text in SPLITS:
        return {text: 1.0}
    entries = [entry.partition("=") for entry in text.split(",")]
    names = [name.strip() for name, _, _ in entries]
    try:
        fractions = {name: float(value) for name, (_, _, value) in zip(names, entries, strict=True)}
    except ValueError:
        fractions = {}
    known = set(names) <= set(SPLITS) and len(fractions) == len(entries)
    if not known or not all(0 < fraction <= 1 for fraction in fractions.values()):
        raise argparse.ArgumentTypeError(
            f"'{text}' must be train, val or test, or fractions over 0 of some of them, each named "
            "once, such as train=0.8,val=0.2"
        )
    if not math.isclose(sum(fractions.values()), 1.0, abs_tol=1e-6):
        raise argparse.ArgumentTypeError(
            f"the fractions of '{text}' add up to {sum(fractions.values()):g}, they must make 1"
        )
    return fractions


def split_by_fractions(
    annotations: Annotations,
    rows: np.ndarray,
    *,
    output: str,
    fractions: Mapping[str, float],
    seed: int,
) -> list[Subset]:
    """Deals images out so that every class is in each split by its share, as near as can be.

    The assignment depends on the images' ids, their classes and the seed alone.

    Args:
        annotations: all images.
        rows: those to deal out.
        output: converted/<part>, of all splits.
        fractions: of each split, together 1; a single one takes all images.
        seed: of the assignment.

    Raises:
        PreparationError: fewer images than splits, or one would get none.
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
            raise PreparationError(f"{split}={fraction:g} of {len(rows)} images is not one image.")
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
    """As `split_by_fractions`, into folds: each has its own images as val, all others as train.

    Args:
        annotations: all images.
        rows: those to deal out.
        output: converted/<part>; the folds' sets go to `<output>_fold_<N>`.
        num_folds: N, from 2.
        fold: this fold only, from 0; by default all.
        seed: of the assignment.

    Raises:
        PreparationError: fewer images than folds.
    """
    rows = rows[order_by_id(annotations, rows)]
    images, classes = labelled_images(annotations, rows)
    owners = assign_folds(len(rows), images, classes, num_folds=num_folds, seed=seed)
    return [
        Subset(split, f"{output.rstrip('/')}_fold_{number}", number, np.sort(rows[chosen]))
        for number in (range(num_folds) if fold is None else (fold,))
        for split, chosen in (("train", owners != number), ("val", owners == number))
    ]


def select_classes(
    annotations: Annotations, classes: tuple[ClassEntry, ...], *, keep_all_images: bool
) -> Annotations:
    """The boxes of some classes, and the images that hold one, or all images; order unchanged.

    Raises:
        PreparationError: there is no box of any of the classes.
    """
    annotations = annotations._replace(classes=classes)
    kept = label_class_ids(annotations.boxes["label"], annotations.class_ids()) > 0
    if not kept.any():
        raise PreparationError(
            f"None of the {len(kept)} boxes is of the {len(classes)} class(es) listed, such as "
            f"'{classes[0].identifier}'; their labels are like "
            f"'{annotations.boxes['label'].astype(str).min()}'."
        )
    annotations = annotations._replace(boxes=annotations.boxes[kept].reset_index(drop=True))
    if keep_all_images:
        return annotations
    held = take_images(annotations, np.unique(annotations.boxes["image"]))
    return held._replace(findings=annotations.findings)


def leave_out_missing(
    annotations: Annotations, image_directories: Sequence[str]
) -> tuple[Annotations, np.ndarray]:
    """Looks for every image file before images are divided or copied.

    Returns:
        The annotations with a finding for each missing file, and the rows of the other images.

    Raises:
        PreparationError: all files are missing.
    """
    files = annotations.images["file"]
    missing = files.isin(missing_files(image_directories, files.tolist())).to_numpy()
    if missing.all():
        raise PreparationError(
            f"None of the {len(files)} image files, such as {files.iloc[0]}, is in "
            f"{' or '.join(image_directories)}."
        )
    boxes = np.bincount(annotations.boxes["image"], minlength=len(files))
    found = [missing_image(files.iloc[row], boxes[row]) for row in np.flatnonzero(missing)]
    annotations = annotations._replace(findings=(*annotations.findings, *found))
    return annotations, np.flatnonzero(~missing)


def labelled_images(annotations: Annotations, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which images hold which classes, by the boxes that the checks will let pass.

    Returns:
        [boxes] position in `rows` of each box's image, and [boxes] class index, from 0.
    """
    images, classes = [], []
    class_ids = annotations.class_ids()
    blocks = range(0, len(rows), _BLOCK)
    for first in tqdm(blocks, desc="checking boxes", unit="block", delay=3.0):
        piece = take_images(annotations, rows[first : first + _BLOCK])
        files = piece.images["file"]
        sizes = piece.images[["height", "width"]].to_numpy(dtype=np.float64)
        frames = np.ones_like(sizes) if annotations.normalized else sizes
        labelled = check_labels(piece.boxes, files, class_ids)
        boxes = check_boxes(labelled.boxes, files, frames).boxes
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
    """Plans how often each of the images `rows` is written; `copies` are in their order.

    The plan depends on the images' ids, their classes and the seed, not on the order of the rows.
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
    return plan._replace(copies=plan.copies[np.argsort(order)])


def share_findings(annotations: Annotations, subsets: Sequence[Subset]) -> list[Annotations]:
    """The annotations for each subset, with the reader's findings on its own images only.

    What concerns no image of any subset, such as a missing file, is told with the first split.
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
