"""The command `tpudet merge_subs`: merges submissions, class by class within each image."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import (
    EXIT_CODES,
    add_fusion_arguments,
    add_rewriting_arguments,
    fusion_options,
)
from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = f"""\
example: tpudet merge_subs merged.csv a.csv b.csv c.csv --method wbf --iou 0.55 --weights 1,0.8,0.8

Images are joined by id and written in the order of their ids; an image that some files lack is
merged from the others, and the summary counts the images that a file lacks: wbf divides by the
weights of all files, so scores are lower there. Methods: hard (non-maximum suppression),
soft_linear and soft_gaussian (Soft-NMS), wbf (weighted boxes fusion), nmw (non-maximum weighted).
Predictions with a score below the threshold, after weighting, take no part and are not written.

Submissions of masks (ImageID,ImageWidth,ImageHeight,PredictionString) are merged by votes, whatever
the method: overlapping masks of a class become one, of the pixels that --mask_votes of them cover,
or the most confident one where there are none; its score is the sum of theirs divided by the
weights of all files.

--class_settings is a CSV with the header `label` and any of method,iou,sigma,threshold; an empty
field keeps the value for all classes.

{EXIT_CODES}"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet merge_subs",
        "Merge submissions into one, class by class within each image.",
        epilog=_EPILOG,
    )
    parser.add_argument("target", metavar="RESULT", help="the submission to write")
    parser.add_argument("sources", metavar="SUB", nargs="+", help="submissions to merge")
    add_fusion_arguments(parser)
    add_rewriting_arguments(parser)
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.submission.merge import MergeOptions, merge_submissions

    return merge_submissions(
        arguments.target,
        arguments.sources,
        MergeOptions(**fusion_options(arguments)),
        force=arguments.force,
        threads=arguments.threads,
        skip_bad=arguments.skip_bad,
    )
