"""Writes one set or several after another; the arguments that this needs."""

import argparse
from collections.abc import Sequence

from tpudet.detection.preparation.records.balance import format_imbalance
from tpudet.detection.preparation.records.existing_files import check_outputs
from tpudet.detection.preparation.records.manifest import format_summary
from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.records.write import write_tfrecords
from tpudet.detection.preparation.sources.annotations import PreparationError
from tpudet.trainkit.command_line import positive_integer


def add_writing_arguments(parser: argparse.ArgumentParser, *, image_check: str) -> None:
    """Adds --max_copies, --seed, --cluster, --image_check and --overwrite.

    Args:
        parser: of the command.
        image_check: default of that argument.
    """
    parser.add_argument(
        "--max_copies",
        type=positive_integer,
        metavar="N",
        help="write no image more often than this, even where a class stays short (no limit)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of order, copies, splits and folds (default 0)"
    )
    parser.add_argument(
        "--cluster",
        metavar="auto|ADDRESS",
        help="write the shards on a Ray cluster whose nodes all reach the same paths: the one at "
        "ADDRESS (host:port); auto: that of RAY_ADDRESS or of this machine, else a new one on it",
    )
    parser.add_argument(
        "--image_check",
        choices=("full", "headers"),
        default=image_check,
        help="full: decode every image; headers: of JPEGs read the structure alone, several times "
        f"faster (default {image_check})",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a finished set made from other inputs"
    )


def check_balance(min_images_per_class: int, max_copies: int | None, splits: Sequence[str]) -> None:
    """Checks that a request for balance makes sense.

    Raises:
        PreparationError: a cap without a minimum, or nothing to train on.
    """
    if max_copies is not None and min_images_per_class == 0:
        raise PreparationError(
            f"--max_copies {max_copies} limits copies, but without a minimum of images a class "
            "nothing is copied: give that too, or leave --max_copies out."
        )
    if min_images_per_class > 0 and "train" not in splits:
        raise PreparationError(
            f"A minimum of {min_images_per_class} images a class suits the split train only, not "
            f"{', '.join(splits)}: copies would falsify an evaluation."
        )


def write_sets(
    plans: Sequence[Plan], *, workers: int, cluster: str | None, overwrite: bool
) -> None:
    """Writes sets one after another, each as `write_tfrecords`, and says what became of them.

    A set that is finished and up to date is left as it is, so a killed run goes on where it was.

    Raises:
        PreparationError: as `write_tfrecords`; where a set is in the way of one of several, before
            any is written.
    """
    if len(plans) > 1:
        check_outputs(plans, overwrite=overwrite)
    for plan in plans:
        if plan.balance is not None:
            print(format_imbalance(plan.balance, plan.annotations.classes, with_table=False))
        manifest, written = write_tfrecords(
            plan, workers=workers, cluster=cluster, overwrite=overwrite
        )
        print(format_summary(manifest))
        state = "written" if written else "up to date, nothing was written"
        print(f"{plan.num_shards} file(s) {plan.prefix}-*: {state}. Manifest: {plan.manifest_path}")
