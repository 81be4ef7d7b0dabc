"""Command: annotations and images -> TFRecords, classes.csv and manifest."""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.manifest import format_summary
from tpudet.detection.preparation.records.plan import Plan, plan_shards
from tpudet.detection.preparation.records.subsets import (
    Subset,
    balance_images,
    leave_out_missing,
    share_findings,
    split_argument,
    split_by_folds,
    split_by_fractions,
)
from tpudet.detection.preparation.records.write import check_only
from tpudet.detection.preparation.records.write_sets import (
    add_writing_arguments,
    check_balance,
    write_sets,
)
from tpudet.detection.preparation.sources.annotations import Annotations, PreparationError
from tpudet.detection.preparation.sources.read import add_source_arguments, read_annotations
from tpudet.trainkit.command_line import positive_integer, run_command

_EXAMPLE = """examples:
  scripts/make_tfrecords.py --format voc --annotations VOC/Annotations --images VOC/JPEGImages \\
      --image_list VOC/ImageSets/Main/train.txt --split train --output $STORAGE/converted/cells
  scripts/make_tfrecords.py --format coco --annotations all.json --images pictures \\
      --split train=0.8,val=0.2 --balance 100 --max_copies 20 --output $STORAGE/converted/cells
  scripts/make_tfrecords.py --format coco --annotations all.json --images pictures \\
      --folds 5 --output $STORAGE/converted/cells      writes cells_fold_0 to cells_fold_4

Splits and folds are stratified: every class is in each by its share. A run that was killed goes on
where it was; finished files are kept.
exit status: 0 done, 2 wrong arguments or inputs (nothing half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="make_tfrecords.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_arguments(parser)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument(
        "--split",
        type=split_argument,
        metavar="SPLIT",
        help="train, val or test; or fractions of the images, as train=0.8,val=0.2",
    )
    kinds.add_argument(
        "--folds", type=positive_integer, metavar="N", help="train and val of N folds, from 2"
    )
    parser.add_argument("--fold", type=int, metavar="K", help="this fold only, from 0")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="converted/PART; its last name is the part"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files a set (default: of about 100 MB each)",
    )
    parser.add_argument(
        "--balance",
        type=positive_integer,
        default=0,
        metavar="MIN_IMAGES",
        help="repeat images of train until each class is in so many",
    )
    add_writing_arguments(parser, image_check="full")
    parser.add_argument("--dry_run", action="store_true", help="check and count, write nothing")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    plans = _plans(arguments, read_annotations(arguments))
    if not arguments.dry_run:
        write_sets(
            plans,
            workers=arguments.workers,
            cluster=arguments.cluster,
            overwrite=arguments.overwrite,
        )
        return 0
    for plan in plans:
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=True))
        print(format_summary(check_only(plan, workers=arguments.workers)))
        print(f"Dry run: {plan.num_shards} file(s) {plan.prefix}-* would be written.")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    folds, fold = arguments.folds, arguments.fold
    if folds == 1:
        raise PreparationError("--folds 1 is no division: give 2 or more.")
    if fold is not None and (folds is None or not 0 <= fold < folds):
        allowed = "needs --folds" if folds is None else f"must be in 0..{folds - 1}"
        raise PreparationError(f"--fold {fold} {allowed}.")
    check_balance(arguments.balance, arguments.max_copies, list(arguments.split or ("train",)))


def _plans(arguments: argparse.Namespace, annotations: Annotations) -> list[Plan]:
    rows = np.arange(len(annotations.images))
    if arguments.folds or arguments.balance or len(arguments.split) > 1:
        # An image without file would count in its class's share and minimum, and then be missed.
        annotations, rows = leave_out_missing(annotations, (arguments.images,))
    where: dict[str, Any] = {"output": arguments.output, "seed": arguments.seed}
    if arguments.folds:
        counts = {"num_folds": arguments.folds, "fold": arguments.fold}
        subsets = split_by_folds(annotations, rows, **counts, **where)
    else:
        subsets = split_by_fractions(annotations, rows, fractions=arguments.split, **where)
    shares = share_findings(annotations, subsets)
    return [_plan(arguments, *pair) for pair in zip(shares, subsets, strict=True)]


def _plan(arguments: argparse.Namespace, annotations: Annotations, subset: Subset) -> Plan:
    balance = None
    if arguments.balance and subset.split == "train":
        balance = balance_images(
            annotations,
            subset.rows,
            min_images_per_class=arguments.balance,
            max_copies=arguments.max_copies,
            seed=arguments.seed,
        )
    names = ("format", "annotations", "images", "image_list", "classes", "include_unlabeled")
    switches = ("include_masks", "split", "folds", "balance", "max_copies")
    options = {name: getattr(arguments, name) for name in (*names, *switches)}
    return plan_shards(
        annotations,
        image_directories=(arguments.images,),
        output=subset.output,
        split=subset.split,
        num_shards=arguments.num_shards,
        seed=arguments.seed,
        include_masks=arguments.include_masks,
        check_pixels=arguments.image_check == "full",
        rows=subset.rows,
        balance=balance,
        options=options | {"fold": subset.fold},
    )
