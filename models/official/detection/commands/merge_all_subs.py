"""The command `tpudet merge_all_subs`: merges the submissions of all models, part by part."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import (
    JOIN_MIN_CONF,
    add_fusion_arguments,
    add_rewriting_arguments,
    fusion_options,
)
from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = """\
example: tpudet merge_all_subs part_0 part_1 --method wbf --iou 0.55

Reads $STORAGE/predictions/*.csv and writes $STORAGE/merged/PART.csv. A submission is of a part if
its name has PART, v1_PART, PRESET_PART, … or PART_fold_0, … between hyphens, as
retinanet-v3_part_0-fold_2-640.csv or mask-segmentation_segmentation-1024.csv. Without PART these
are human_parts, part_0 to part_4 and segmentation, as far as there are any, and the merged parts
but segmentation are joined in $STORAGE/merged/joined.csv; tpudet add_parents then leaves the box of
an ancestor that several parts have once. --weights go with the submissions of each part in the
order of their names, as they are printed. $STORAGE is `output` by default.

Files that exist are skipped. PART.csv.merge.json beside each records its SHA-256 and the files and
options that it was made of; if these are others now, it is out of date and nothing is joined: -f
replaces all.

exit codes: 0 done, 1 a file is out of date, 2 wrong arguments or unusable files
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet merge_all_subs",
        "Merge, part by part, the submissions of all models and folds, and join the parts.",
        epilog=_EPILOG,
    )
    parser.add_argument("parts", metavar="PART", nargs="*", help="parts of the classes to merge")
    add_fusion_arguments(parser)
    add_rewriting_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.detection.submission.merge import MergeOptions
    from tpudet.detection.submission.merge_all import merge_all_submissions
    from tpudet.trainkit.files.locations import storage_path

    return merge_all_submissions(
        storage_path("predictions"),
        storage_path("merged"),
        parts=arguments.parts,
        options=MergeOptions(**fusion_options(arguments)),
        min_conf=JOIN_MIN_CONF,
        force=arguments.force,
        threads=arguments.threads,
        skip_bad=arguments.skip_bad,
    )
