"""Converts annotations and images to TFRecords, classes.csv and a manifest."""

import argparse
import math
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    SPLITS,
    add_source_arguments,
    add_writing_arguments,
    build_source,
)
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command

_EPILOG = """examples:
  tpudet make_tfrecords --format voc --annotations VOC/Annotations --images VOC/JPEGImages \\
      --image_list VOC/ImageSets/Main/train.txt --split train --output $STORAGE/converted/cells
  tpudet make_tfrecords --format coco --annotations all.json --images images \\
      --split train=0.8,val=0.2 --balance 100 --max_copies 20 --output $STORAGE/converted/cells
  tpudet make_tfrecords --format yolo --annotations data.yaml --split train \\
      --output $STORAGE/converted/cells
  tpudet make_tfrecords --format table --annotations train.csv --images images \\
      --columns image=image_id,xywh=bbox,class=source --split train=0.8,val=0.2 \\
      --output $STORAGE/converted/wheat
  tpudet make_tfrecords --format coco --annotations all.json --images images \\
      --folds 5 --output $STORAGE/converted/cells      writes cells_fold_0 to cells_fold_4

Splits and folds are stratified: each gets its share of every class. The same command resumes an
interrupted run; finished files are kept. A set that would lose all its boxes, or all boxes of a
class, and a train split without a box are refused unless --allow_empty is given. A label that is
none of the annotations' classes counts as a class, unless --classes names those to take.
exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet make_tfrecords", __doc__, epilog=_EPILOG)
    add_source_arguments(parser)
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument(
        "--split",
        type=split_fractions,
        metavar="SPLIT",
        help="train, val or test; or fractions of the images, as train=0.8,val=0.2",
    )
    kinds.add_argument(
        "--folds", type=positive_integer, metavar="N", help="train and val of N folds, from 2"
    )
    parser.add_argument("--fold", type=int, metavar="K", help="only this fold, from 0")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="converted/PART; its last name is the part"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files per set (default: about 100 MB each)",
    )
    parser.add_argument(
        "--balance",
        type=positive_integer,
        default=0,
        metavar="MIN_IMAGES",
        help="repeat training images until every class is in so many of them",
    )
    add_writing_arguments(parser, image_check="full", seed_of="order, copies, splits and folds")
    parser.add_argument("--dry_run", action="store_true", help="check and count, write nothing")
    return run_command(parser, argv, _run)


def split_fractions(text: str) -> dict[str, float]:
    """The fraction of each split, as the `type` of an argument: `train` or `train=0.8,val=0.2`."""
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
            f"'{text}' must be train, val or test, or fractions above 0 of some of them, each "
            "named once, such as train=0.8,val=0.2"
        )
    if not math.isclose(sum(fractions.values()), 1.0, abs_tol=1e-6):
        raise argparse.ArgumentTypeError(
            f"the fractions of '{text}' add up to {sum(fractions.values()):g}, not to 1"
        )
    return fractions


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.records.convert import Conversion, convert_source

    conversion = Conversion(
        output=arguments.output,
        split=arguments.split,
        folds=arguments.folds,
        fold=arguments.fold,
        num_shards=arguments.num_shards,
        balance=arguments.balance,
        max_copies=arguments.max_copies,
        seed=arguments.seed,
        check_pixels=arguments.image_check == "full",
    )
    convert_source(
        build_source(arguments),
        conversion,
        workers=arguments.workers,
        cluster=arguments.cluster,
        overwrite=arguments.overwrite,
        allow_empty=arguments.allow_empty,
        dry_run=arguments.dry_run,
    )
