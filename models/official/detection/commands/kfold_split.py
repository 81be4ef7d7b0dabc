"""Splits a box CSV into folds with equal shares of every class."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import FOLD_SEED
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, seed
from tpudet.trainkit.files.locations import storage_path

_EPILOG = """example:
  tpudet kfold_split 'folds/train_{}.csv' 'folds/val_{}.csv' train.csv --classes part_0.csv

exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet kfold_split", __doc__, epilog=_EPILOG)
    folder = storage_path("prepared", "folds")
    add_positionals(
        parser,
        (
            "train_mask",
            "OUT_TRAIN_MASK",
            f"{folder}/train_fold_{{}}.csv",
            "boxes of all other folds; {} becomes the fold, from 0",
        ),
        ("val_mask", "OUT_VAL_MASK", f"{folder}/val_fold_{{}}.csv", "boxes of the fold itself"),
        ("source", "INPUT", storage_path("prepared", "train_no_groups.csv"), "box CSV"),
    )
    parser.add_argument("--classes", metavar="FILE", help="leave out boxes of other classes")
    parser.add_argument(
        "--num_folds", type=positive_integer, default=5, metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--seed", type=seed, default=FOLD_SEED, help="default: %(default)s")
    add_overwrite_argument(parser, "existing files")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.folds import folds_step
    from tpudet.trainkit.jobs.steps import run_step

    step = folds_step(
        arguments.train_mask,
        arguments.val_mask,
        arguments.source,
        classes=arguments.classes,
        num_folds=arguments.num_folds,
        seed=arguments.seed,
    )
    run_step(step, overwrite=arguments.overwrite)
