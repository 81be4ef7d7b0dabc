"""Writes one fold of every part as TFRecords, evaluated on the fold's own training images."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import (
    add_part_arguments,
    build_workspace,
    build_write_options,
)
from tpudet.detection.preparation.open_images.challenge import FOLD_SEED
from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, seed

_EPILOG = """The training images of every part are split into folds of equal size, stratified by
class. FOLD itself becomes the split val of $STORAGE/converted/PART_fold_FOLD, all other folds,
balanced as the preset says, its split train. The same command resumes an interrupted run; what is
up to date is skipped. Folds of another --num_folds or --fold_seed beside it are refused.

example:
  tpudet prepare_folds 0 --parts part_0
exit codes: 0 done, 2 wrong arguments or inputs (nothing is left half-written), 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet prepare_folds", __doc__, epilog=_EPILOG)
    parser.add_argument("fold", type=int, metavar="FOLD", help="from 0")
    parser.add_argument(
        "--num_folds", type=positive_integer, default=5, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--preset", default="folds", help="for the training sets (default: %(default)s)"
    )
    parser.add_argument(
        "--fold_seed", type=seed, default=FOLD_SEED, help="of the folds (default: %(default)s)"
    )
    add_part_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.prepare_folds import prepare_folds

    prepare_folds(
        arguments.fold,
        num_folds=arguments.num_folds,
        fold_seed=arguments.fold_seed,
        preset_name=arguments.preset,
        presets=arguments.presets,
        parts=arguments.parts,
        workspace=build_workspace(arguments),
        options=build_write_options(arguments),
        dry_run=arguments.dry_run,
    )
