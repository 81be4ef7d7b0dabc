"""Splits a box CSV into stratified folds."""

import os
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.open_images.whole_files import whole_files
from tpudet.detection.preparation.records.stratification import assign_folds, images_per_fold
from tpudet.detection.preparation.sources.box_csv import (
    PROGRESS_DELAY,
    read_boxes,
    select_rows,
    stream_boxes,
    write_rows,
)
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.trainkit.class_list import class_ids, read_classes
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.steps import Step


class _Rows(NamedTuple):
    """The columns of a box CSV that folds depend on."""

    images: np.ndarray  # [rows] number of the image
    classes: np.ndarray  # [rows] number of the class, from 1; 0 for none
    kept: np.ndarray  # [rows] bool: a box of the classes, or an image without objects


def split_folds(
    train_mask: str, val_mask: str, source: str, *, classes: str | None, num_folds: int, seed: int
) -> str:
    """Writes two box CSVs per fold: its own images and those of all other folds; text unchanged.

    All appear together, so that none is ever beside one of another division.

    Args:
        train_mask: path of the files with the other folds' images; `{}` becomes the fold, from 0.
        val_mask: path of the files with the fold's own images.
        source: a box CSV.
        classes: a class list; rows with other labels are left out. None takes all labels.
        num_folds: at least 2.
        seed: of the assignment.

    Returns:
        A summary of what was written.

    Raises:
        UserError: a mask without its `{}`, fewer images than folds, no row of the classes, or a
            file that cannot be read.
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
    with whole_files(_fold_paths(train_mask, val_mask, num_folds)) as files:
        pairs = list(zip(files[::2], files[1::2], strict=True))
        bar = tqdm(pairs, desc="writing folds", unit="fold", delay=PROGRESS_DELAY)
        for fold, (train, val) in enumerate(bar):
            write_rows(train, select_rows(batches, rows.kept & (row_folds != fold)))
            write_rows(val, select_rows(batches, row_folds == fold))
    counts = images_per_fold(folds, box_images, box_classes, num_folds=num_folds)
    left_out = (
        f" {count} rows of other classes left out."
        if (count := np.count_nonzero(~rows.kept))
        else ""
    )
    sizes = np.bincount(folds)
    return (
        f"{len(images)} images and {len(box_classes)} boxes of {counts.shape[1]} classes into "
        f"{num_folds} folds of {sizes.min()} to {sizes.max()} images; the image count of a class "
        f"differs by at most {np.ptp(counts, axis=0).max()} between folds.{left_out}"
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
        raise UserError(f"INPUT {source} has no box with {which}: nothing can be split.")
    kept = (numbers > 0) | labels.isna().to_numpy()
    return _Rows(table["ImageID"].cat.codes.to_numpy(np.int64), numbers, kept)


def _fold_paths(train_mask: str, val_mask: str, num_folds: int) -> list[str]:
    """Returns the file of the other folds and the file of each fold itself, in turn."""
    return [mask.format(fold) for fold in range(num_folds) for mask in (train_mask, val_mask)]


def _check_masks(train_mask: str, val_mask: str) -> None:
    masks = {"OUT_TRAIN_MASK": train_mask, "OUT_VAL_MASK": val_mask}
    faults = [
        f"{name} {mask} must contain {{}} once; it becomes the number of the fold."
        for name, mask in masks.items()
        if mask.count("{}") != 1 or mask.count("{") + mask.count("}") != 2
    ]
    if train_mask == val_mask:
        faults.append(f"OUT_TRAIN_MASK and OUT_VAL_MASK are both {val_mask}: name two files.")
    if faults:
        raise UserError("\n".join(faults))


def folds_step(
    train_mask: str,
    val_mask: str,
    source: str,
    *,
    classes: str | None = None,
    num_folds: int,
    seed: int,
) -> Step:
    """Returns the step that runs `split_folds`.

    Raises:
        UserError: a mask without its `{}`.
    """
    _check_masks(train_mask, val_mask)
    return Step(
        name=f"Split {os.path.basename(source)} into {num_folds} folds",
        inputs=(source, *([classes] if classes else [])),
        options={"classes": classes is not None, "num_folds": num_folds, "seed": seed},
        outputs=tuple(_fold_paths(train_mask, val_mask, num_folds)),
        run=lambda: split_folds(
            train_mask, val_mask, source, classes=classes, num_folds=num_folds, seed=seed
        ),
        code=STEP_CODE,
    )
