"""Stratified splits: every fold or share gets its part of the images of every class.

Iterative stratification (Sechidis, Tsoumakas, Vlahavas: On the Stratification of Multi-Label Data,
ECML PKDD 2011), as the package `iterative-stratification` implements it: the rarest class first,
each of its images to the share that lacks it most.
"""

import argparse
import math
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.open_images.default_paths import storage_path
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.detection.preparation.sources.box_csv import (
    PROGRESS_DELAY,
    read_boxes,
    select_rows,
    stream_boxes,
    write_boxes,
)
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.preparation.sources.input_files import read_classes
from tpudet.trainkit.class_list import class_ids
from tpudet.trainkit.command_line import positive_integer, run_command
from tpudet.trainkit.jobs.steps import Step, run_step

SEED = 777
_EXAMPLE = """example:
  scripts/kfold_split.py 'folds/train_{}.csv' 'folds/val_{}.csv' train.csv --classes part_0.csv

exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written)
"""


def assign_folds(
    num_images: int,
    box_images: np.ndarray,
    box_classes: np.ndarray,
    *,
    num_folds: int,
    seed: int = SEED,
) -> np.ndarray:
    """Deals images into folds of equal size in which every class has its equal share.

    The result is that of iterstrat's MultilabelStratifiedKFold with shuffle=True.

    Args:
        num_images: images, with boxes or without.
        box_images: [boxes] row number of the image of each box.
        box_classes: [boxes] any numbers from 0 that tell the classes apart.
        num_folds: at least 2.
        seed: equal seeds give equal folds, on every platform.

    Returns:
        [images] fold, from 0.

    Raises:
        PreparationError: fewer than 2 folds, or fewer images than folds.
    """
    if num_folds < 2:
        raise PreparationError(f"{num_folds} folds are no split: give 2 or more.")
    fractions = [1 / num_folds] * num_folds
    return assign_fractions(num_images, box_images, box_classes, fractions=fractions, seed=seed)


def assign_fractions(
    num_images: int,
    box_images: np.ndarray,
    box_classes: np.ndarray,
    *,
    fractions: Sequence[float],
    seed: int = SEED,
) -> np.ndarray:
    """As `assign_folds`, into shares of given sizes; images without boxes are spread likewise.

    Costs a byte of memory an image and class, twice, and about `estimate_seconds`, which it says
    on stderr where that is more than some seconds.

    Args:
        num_images: as `assign_folds`; so are the boxes and the seed.
        box_images: [boxes].
        box_classes: [boxes].
        fractions: of the images, each over 0, together 1.
        seed: of the shuffle and of ties.

    Returns:
        [images] index into `fractions`.

    Raises:
        PreparationError: the fractions do not make a whole, or there are fewer images than shares.
    """
    # Here, for it brings scikit-learn: a second, which other commands should not wait for.
    from iterstrat.ml_stratifiers import IterativeStratification

    if min(fractions) <= 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        shares = ", ".join(f"{fraction:g}" for fraction in fractions)
        raise PreparationError(f"The shares {shares} must each be over 0 and add up to 1.")
    if num_images < len(fractions):
        raise PreparationError(f"{num_images} images cannot be split into {len(fractions)} shares.")
    labels = _label_matrix(num_images, box_images, box_classes)
    seconds = estimate_seconds(*labels.shape)
    if seconds > PROGRESS_DELAY:
        what = f"{num_images} images of {labels.shape[1]} classes"
        print(f"Stratifying {what} takes about {seconds:.0f} s.", file=sys.stderr, flush=True)
    # The legacy generator, because its numbers are promised to stay as they are.
    random_state = np.random.RandomState(seed)
    order = np.arange(num_images)
    random_state.shuffle(order)
    shares = np.empty(num_images, np.int64)
    shares[order] = IterativeStratification(labels[order], np.array(fractions), random_state)
    return shares


def estimate_seconds(num_images: int, num_classes: int) -> float:
    """How long the assignment takes, within about a factor of two.

    Measured on a core of 2026, in seconds: 2.7 for 200,000 images of 100 classes, 28 for 200,000 of
    500, 10 for 1.2 million of 32. Every image costs a step of Python, and each class in turn a look
    at the whole table.
    """
    return num_images * (8e-6 + 0.54e-9 * num_classes**2)


def _label_matrix(num_images: int, box_images: np.ndarray, box_classes: np.ndarray) -> np.ndarray:
    """[images, classes] bool: which images have a box of which of the classes that occur."""
    occurs = np.bincount(box_classes) > 0
    columns = np.cumsum(occurs) - 1
    labels = np.zeros((num_images, np.count_nonzero(occurs)), bool)
    labels[box_images, columns[box_classes]] = True
    return labels


def images_per_fold(
    folds: np.ndarray, box_images: np.ndarray, box_classes: np.ndarray, *, num_folds: int
) -> np.ndarray:
    """[folds, classes] number of images, for the classes that occur, by rising number."""
    labels = _label_matrix(len(folds), box_images, box_classes)
    return np.stack([labels[folds == fold].sum(axis=0) for fold in range(num_folds)])


class _Rows(NamedTuple):
    """The rows of a box CSV as far as folds need them."""

    images: np.ndarray  # [rows] number of the image
    classes: np.ndarray  # [rows] number of the class, from 1; 0 for none
    kept: np.ndarray  # [rows] bool: a box of the classes, or an image without objects


def split_folds(
    train_mask: str, val_mask: str, source: str, *, classes: str | None, num_folds: int, seed: int
) -> str:
    """Writes two box CSVs a fold: its own images, and those of all other folds; text unchanged.

    Args:
        train_mask: name of the files of the other folds' images; `{}` becomes the fold, from 0.
        val_mask: name of the files of the folds' own images.
        source: a box CSV.
        classes: a class list: rows of other labels go to no file; by default all labels count.
        num_folds: at least 2.
        seed: of the assignment.

    Returns:
        What was written, in words.

    Raises:
        PreparationError: a mask without its `{}`, fewer images than folds, no row of the classes,
            or a file that cannot be read.
    """
    _check_masks(train_mask, val_mask)
    rows = _read_rows(source, classes)
    images, owners = np.unique(rows.images[rows.kept], return_inverse=True)
    is_box = rows.classes[rows.kept] > 0
    box_images, box_classes = owners[is_box], rows.classes[rows.classes > 0]
    folds = assign_folds(len(images), box_images, box_classes, num_folds=num_folds, seed=seed)
    row_folds = np.full(len(rows.kept), -1, np.int16)
    row_folds[rows.kept] = folds[owners]
    batches = list(stream_boxes(source, "INPUT"))
    for fold in tqdm(range(num_folds), desc="writing folds", unit="fold", delay=PROGRESS_DELAY):
        write_boxes(val_mask.format(fold), select_rows(batches, row_folds == fold))
        others = rows.kept & (row_folds != fold)
        write_boxes(train_mask.format(fold), select_rows(batches, others))
    counts = images_per_fold(folds, box_images, box_classes, num_folds=num_folds)
    left_out = (
        f" {count} rows of other classes left out."
        if (count := np.count_nonzero(~rows.kept))
        else ""
    )
    sizes = np.bincount(folds)
    return (
        f"{len(images)} images and {len(box_classes)} boxes of {counts.shape[1]} classes into "
        f"{num_folds} folds of {sizes.min()} to {sizes.max()} images; the images of a class differ "
        f"by {np.ptp(counts, axis=0).max()} at most between folds.{left_out}"
    )


def _read_rows(source: str, classes: str | None) -> _Rows:
    table = read_boxes(source, "INPUT", columns=("ImageID", "LabelName"))
    labels = table["LabelName"]
    if classes is None:
        numbers = labels.cat.codes.to_numpy(np.int64) + 1
    else:
        numbers = label_class_ids(labels, class_ids(read_classes(classes)))
    if not (numbers > 0).any():
        which = f"a class of {classes}" if classes else "a label"
        raise PreparationError(f"INPUT {source} has no box with {which}: nothing can be split.")
    kept = (numbers > 0) | labels.isna().to_numpy()
    return _Rows(table["ImageID"].cat.codes.to_numpy(np.int64), numbers, kept)


def _check_masks(train_mask: str, val_mask: str) -> None:
    masks = {"OUT_TRAIN_MASK": train_mask, "OUT_VAL_MASK": val_mask}
    faults = [
        f"{name} {mask} must hold {{}} once, which becomes the number of the fold."
        for name, mask in masks.items()
        if mask.count("{}") != 1 or mask.count("{") + mask.count("}") != 2
    ]
    if train_mask == val_mask:
        faults.append(f"OUT_TRAIN_MASK and OUT_VAL_MASK are both {val_mask}: name two files.")
    if faults:
        raise PreparationError("\n".join(faults))


def folds_step(
    train_mask: str,
    val_mask: str,
    source: str,
    *,
    classes: str | None = None,
    num_folds: int = 5,
    seed: int = SEED,
) -> Step:
    """The step of `split_folds`.

    Raises:
        PreparationError: a mask without its `{}`.
    """
    _check_masks(train_mask, val_mask)
    masks = (train_mask, val_mask)
    return Step(
        name=f"Split {os.path.basename(source)} into {num_folds} folds",
        inputs=(source, *([classes] if classes else [])),
        options={"classes": classes is not None, "num_folds": num_folds, "seed": seed},
        outputs=tuple(mask.format(fold) for fold in range(num_folds) for mask in masks),
        run=lambda: split_folds(
            train_mask, val_mask, source, classes=classes, num_folds=num_folds, seed=seed
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="kfold_split.py",
        description="Split a box CSV into folds in which every class has its equal share.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder = storage_path("prepared", "folds")
    parser.add_argument(
        "train_mask",
        metavar="OUT_TRAIN_MASK",
        nargs="?",
        default=f"{folder}/train_fold_{{}}.csv",
        help="{} becomes the fold, from 0; the boxes of all other folds (default: %(default)s)",
    )
    parser.add_argument(
        "val_mask",
        metavar="OUT_VAL_MASK",
        nargs="?",
        default=f"{folder}/val_fold_{{}}.csv",
        help="the boxes of the fold itself (default: %(default)s)",
    )
    parser.add_argument(
        "source",
        metavar="INPUT",
        nargs="?",
        default=storage_path("prepared", "train_no_groups.csv"),
        help="box CSV (default: %(default)s)",
    )
    parser.add_argument("--classes", metavar="FILE", help="leave out boxes of other classes")
    parser.add_argument("--num_folds", type=positive_integer, default=5, metavar="N")
    parser.add_argument("--seed", type=int, default=SEED, help="default: %(default)s")
    parser.add_argument("--overwrite", action="store_true", help="replace files of other origin")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    step = folds_step(
        arguments.train_mask,
        arguments.val_mask,
        arguments.source,
        classes=arguments.classes,
        num_folds=arguments.num_folds,
        seed=arguments.seed,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
