"""Converts annotations and images into the data sets of a part, or only checks them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpudet.detection.preparation.records.balance import check_balance, format_imbalance
from tpudet.detection.preparation.records.fold_divisions import check_folds_beside
from tpudet.detection.preparation.records.manifest import format_summary
from tpudet.detection.preparation.records.plan import Plan, plan_shards
from tpudet.detection.preparation.records.required_boxes import require_boxes
from tpudet.detection.preparation.records.subsets import (
    Subset,
    balance_images,
    leave_out_missing,
    share_findings,
    split_by_folds,
    split_by_fractions,
)
from tpudet.detection.preparation.records.write_set import (
    ALLOW_EMPTY,
    check_only,
    write_sets,
)
from tpudet.detection.preparation.sources.read import ReadSource, Source, read_source
from tpudet.detection.preparation.sources.yolo_layout import YOLO_SPLITS
from tpudet.trainkit.class_list import write_class_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.file_kinds import FINDINGS, write_json

_IMAGES_PER_JOB = 256  # of a check
_REPORTED = (
    *("images", "boxes", "boxes_per_class"),
    *("left_out", "repaired", "left_out_counts", "repaired_counts"),
)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Options of a conversion.

    Raises:
        UserError: the options contradict each other.
    """

    output: str  # converted/<part>
    split: Mapping[str, float] | None  # fraction of the images by split; None: folds
    folds: int | None  # number of folds, each with train and val
    fold: int | None  # only this one, from 0
    num_shards: int | None  # files per set; None: shards of about 100 MB
    balance: int  # images per class of train to reach by repeating images; 0: none is repeated
    max_copies: int | None  # of an image; None: no limit
    seed: int  # of order, copies, splits and folds
    check_pixels: bool  # decode every image instead of checking the structure of JPEGs

    def __post_init__(self) -> None:
        if self.folds == 1:
            raise UserError("--folds 1 is not a split: give 2 or more.")
        if self.fold is not None and (self.folds is None or not 0 <= self.fold < self.folds):
            allowed = "needs --folds" if self.folds is None else f"must be in 0..{self.folds - 1}"
            raise UserError(f"--fold {self.fold} {allowed}.")
        check_balance(self.balance, self.max_copies, list(self.split or ("train",)))


def convert_source(
    source: Source,
    conversion: Conversion,
    *,
    workers: int,
    cluster: str | None,
    overwrite: bool,
    allow_empty: bool,
    dry_run: bool,
) -> None:
    """Reads a source, divides it into sets and writes them, see `write_sets`.

    Args:
        source: the annotations and images.
        conversion: how to convert them.
        workers: as for `write_sets`.
        cluster: as for `write_sets`.
        overwrite: as for `write_sets`.
        allow_empty: as for `write_sets`.
        dry_run: check everything and print counts, but write nothing.

    Raises:
        UserError: the source cannot be read or divided, folds of another division are beside
            the output, or as `write_sets`.
    """
    given = conversion.split or {}
    # Fractions and folds divide what is there to train with; the test split stays apart.
    yolo_splits = tuple(given) if len(given) == 1 else ("train", "val")
    read = read_source(source, yolo_splits)
    plans = _plan_sets(source, conversion, read, allow_empty=allow_empty)
    if conversion.folds:
        check_folds_beside(
            conversion.output,
            num_folds=conversion.folds,
            seed=conversion.seed,
            digest=plans[0].options["division"],
            overwrite=overwrite,
        )
    if not dry_run:
        write_sets(
            plans,
            workers=workers,
            cluster=cluster,
            overwrite=overwrite,
            allow_empty=allow_empty,
        )
        return
    for plan in plans:
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))
        found = check_only(plan, workers=workers)
        print(format_summary(found))
        if not allow_empty:
            require_boxes(plan, found, ALLOW_EMPTY)
        print(f"Dry run: {plan.num_shards} file(s) {plan.prefix}-* would be written.")


def check_source(source: Source, *, workers: int, report: str | None) -> bool:
    """Runs all checks of `convert_source`, prints the findings and writes no records.

    Args:
        source: the annotations and images.
        workers: processes.
        report: path of a JSON file for all findings; None writes none.

    Returns:
        Whether everything can be used, perhaps after repairs.

    Raises:
        UserError: the source cannot be read, its classes cannot be written, or all boxes, or all of
            a class, would be left out.
    """
    annotations, image_directory = read_source(source, YOLO_SPLITS)
    plan = plan_shards(
        annotations,
        image_directories=(image_directory,),
        output="data",
        split="check",
        num_shards=-(-len(annotations.images) // _IMAGES_PER_JOB),
        seed=0,
        include_masks=source.include_masks,
        options={"classes": source.classes},
    )
    found = check_only(plan, workers=workers)
    print(format_summary(found))
    if report is not None:
        write_json(report, {part: found[part] for part in _REPORTED}, FINDINGS)
    write_class_list(annotations.classes)
    require_boxes(plan, found, "Correct the annotations.")
    return not found["left_out"]


def _plan_sets(
    source: Source, conversion: Conversion, read: ReadSource, *, allow_empty: bool
) -> list[Plan]:
    annotations, image_directory = read
    rows = np.arange(len(annotations.images))
    if conversion.split is None or conversion.balance or len(conversion.split) > 1:
        # An image without a file would count for its class here, and be missing later.
        annotations, rows = leave_out_missing(
            annotations, (image_directory,), allow_empty=allow_empty
        )
    common: dict[str, Any] = {"output": conversion.output, "seed": conversion.seed}
    if conversion.folds:
        folds = {"num_folds": conversion.folds, "fold": conversion.fold}
        subsets = split_by_folds(annotations, rows, **folds, **common)
    else:
        subsets = split_by_fractions(annotations, rows, fractions=conversion.split or {}, **common)
    shares = share_findings(annotations, subsets)
    return [
        _plan_set(source, conversion, ReadSource(own, image_directory), subset)
        for own, subset in zip(shares, subsets, strict=True)
    ]


def _plan_set(source: Source, conversion: Conversion, read: ReadSource, subset: Subset) -> Plan:
    annotations, image_directory = read
    balance = None
    if conversion.balance and subset.split == "train":
        balance = balance_images(
            annotations,
            subset.rows,
            min_images_per_class=conversion.balance,
            max_copies=conversion.max_copies,
            seed=conversion.seed,
        )
    return plan_shards(
        annotations,
        image_directories=(image_directory,),
        output=subset.output,
        split=subset.split,
        num_shards=conversion.num_shards,
        seed=conversion.seed,
        include_masks=source.include_masks,
        check_pixels=conversion.check_pixels,
        rows=subset.rows,
        balance=balance,
        options={
            **source._asdict(),
            "split": conversion.split,
            "folds": conversion.folds,
            "balance": conversion.balance,
            "max_copies": conversion.max_copies,
            "fold": subset.fold,
            "division": subset.division,
        },
    )
