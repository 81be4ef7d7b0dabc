"""The command `tpudet draw_predictions`: images with predictions and ground truth, and a page."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command, share

_EPILOG = """\
examples:
  tpudet draw_predictions predictions.parquet --images images/ --output drawn/
  tpudet draw_predictions predictions.parquet --images images/ --output drawn/ \\
      --groundtruth $STORAGE/converted/part_0 --split val --worst 50
  tpudet draw_predictions sub.csv --images images/ --output drawn/ --classes classes.csv \\
      --groundtruth val_no_groups.csv --image_ids 0a1b2c3d4e5f6071,2a3b4c5d6e7f8091

The worst images are those with the highest badness: the number of missed objects plus the sum of
the scores of false predictions. Predictions of --min_score or more are matched class by class
within an image, in descending order of score, with the ground-truth object of the highest IoU, at
0.5 or more.

DIR/index.html opens in any browser without a network and stays below some 10 MB; a PNG per image is
beside it, ground truth on the left and predictions on the right. Masks are filled where the
predictions have them.

exit codes: 0 done, 2 wrong arguments or unusable input
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet draw_predictions",
        "Draw predictions, beside the ground truth if it is given, into PNGs and one HTML page.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "predictions", metavar="PREDICTIONS", help="predictions file, or a submission (.csv)"
    )
    parser.add_argument("--images", metavar="DIR", required=True, help="folder of images")
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder to make; for this page only"
    )
    parser.add_argument(
        "--groundtruth", metavar="PATH", help="a folder converted/PART, or a box CSV"
    )
    parser.add_argument("--split", default="val", help="of a folder as --groundtruth [val]")
    parser.add_argument("--classes", metavar="FILE", help="class list, for a submission")
    parser.add_argument(
        "--min_score", type=share, default=0.3, help="leave out predictions below it [0.3]"
    )
    parser.add_argument(
        "--skip_bad", action="store_true", help="leave bad rows of a submission out and count them"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--worst", type=positive_integer, metavar="N", help="the N worst images")
    which.add_argument(
        "--num", type=positive_integer, metavar="N", help="N images evenly over all, by id"
    )
    which.add_argument("--image_ids", metavar="ID,...", help="these images")
    which.add_argument("--ids", metavar="FILE", help="these images, one id per line")
    parser.add_argument("-f", "--force", action="store_true", help="replace the output folder")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.inspection.draw import ImageChoice, draw_predictions

    options = vars(arguments)
    choice = ImageChoice(*(options.pop(name) for name in ImageChoice._fields))
    return draw_predictions(**options, choice=choice)
