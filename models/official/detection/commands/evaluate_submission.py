"""The command `tpudet evaluate_submission`: mean average precision by the challenge's rules."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.submission_arguments import add_truth_arguments, truth_options
from tpudet.trainkit.command_line import natural_number, new_parser, run_command

_EPILOG = """\
example: tpudet evaluate_submission sub.csv challenge-2019-validation-detection-bbox.csv \\
             --hierarchy challenge-2019-label500-hierarchy.json \\
             --image_labels challenge-2019-validation-detection-human-imagelabels.csv

The rules are those of the Open Images Challenge 2019: the ground truth, not the submission, is
expanded up the hierarchy; a class that is not verified for an image is not scored there; each
group-of box counts once; AP at IoU 0.5 over all points, and its mean over the classes with ground
truth. Without --hierarchy the ground truth must be expanded already.

GROUNDTRUTH is a box CSV (ImageID,LabelName,XMin,XMax,YMin,YMax, IsGroupOf and others). With --masks
it has ImageWidth, ImageHeight and Mask too (base64 of zlib of COCO RLE; blank: no mask).

DIR gets classes.csv (a row per class), precision_recall_<n>.png (the worst classes first) and
summary.json.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet evaluate_submission",
        "Score a submission by the rules of the Open Images Challenge.",
        epilog=_EPILOG,
    )
    parser.add_argument("submission", metavar="SUB", help="the submission")
    add_truth_arguments(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="default: SUB without .csv, and `_evaluation`"
    )
    parser.add_argument(
        "--num_curves",
        type=natural_number,
        metavar="N",
        help="how many classes are drawn, the worst first (default: a page of them; 0: none)",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.evaluation.open_images.evaluate import (
        ChallengeOptions,
        evaluate_submission,
    )

    return evaluate_submission(
        arguments.submission,
        ChallengeOptions(**truth_options(arguments)),
        output=arguments.output,
        num_curves=arguments.num_curves,
        force=arguments.force,
    )
