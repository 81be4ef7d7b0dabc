"""Command: annotations and images -> TFRecords, classes.csv and manifest."""

import argparse
from collections.abc import Sequence
from typing import Any

from detection.preparation.plan import plan_shards
from detection.preparation.report import format_summary
from detection.preparation.shard_jobs import FORMAT_VERSION
from detection.preparation.sources import (
    add_source_arguments,
    positive_integer,
    read_annotations,
    run_command,
)
from detection.preparation.write import check_only, write_tfrecords

_EXAMPLE = """example:
  scripts/make_tfrecords.py --format voc --annotations VOC/Annotations --images VOC/JPEGImages \\
      --image_list VOC/ImageSets/Main/train.txt --split train --output $STORAGE/converted/cells

A run that was killed goes on where it was; finished files are kept.
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
    parser.add_argument("--split", required=True, choices=("train", "val", "test"))
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="converted/PART; its last name is the part"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files (default: of about 100 MB each)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the order of train images")
    parser.add_argument("--dry_run", action="store_true", help="check and count, write nothing")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a finished set made from other inputs"
    )
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    plan = plan_shards(
        read_annotations(arguments),
        image_directory=arguments.images,
        output=arguments.output,
        split=arguments.split,
        num_shards=arguments.num_shards,
        seed=arguments.seed,
        include_masks=arguments.include_masks,
        options=_options(arguments),
    )
    if arguments.dry_run:
        print(format_summary(check_only(plan, workers=arguments.workers)))
        print(f"Dry run: {plan.num_shards} file(s) {plan.prefix}-* would be written.")
        return 0
    manifest, written = write_tfrecords(
        plan, workers=arguments.workers, overwrite=arguments.overwrite
    )
    print(format_summary(manifest))
    state = "written" if written else "up to date, nothing was written"
    print(f"{plan.num_shards} file(s) {plan.prefix}-*: {state}. Manifest: {plan.manifest_path}")
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "annotations", "images", "image_list", "classes")
    switches = ("include_unlabeled", "include_masks", "seed")
    options = {name: getattr(arguments, name) for name in (*names, *switches)}
    return options | {"format_version": FORMAT_VERSION}
