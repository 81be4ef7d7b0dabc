"""The command `tpudet convert_predictions`: predictions as COCO results, YOLO or CSV."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command, share

_EPILOG = """\
examples:
  tpudet convert_predictions p.parquet results.json --to coco --ground_truth instances_val.json
  tpudet convert_predictions p.parquet labels --to yolo --min_score 0.25
  tpudet convert_predictions p.parquet sub.csv --to csv --coordinates pixels --images test \\
      --format '{image},{score:.4f} {x:.0f} {y:.0f} {w:.0f} {h:.0f}' \\
      --header image_id,PredictionString

fields of --format: image width height label name class_id score x y w h cx cy x1 y1 x2 y2. If all
fields of a detection stand in one column, as above, an image has one row in which its detections
follow one another; otherwise each detection has a row.

--to yolo writes a file of lines `class cx cy width height score` for each image, and classes.txt,
where line N, from 0, is the name of class N.

Of a file that tpudet predict --shard wrote, the result has the images of that shard only, and the
summary says so.

exit codes: 0 done, 2 wrong arguments or unusable files (nothing is written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser(
        "tpudet convert_predictions",
        "Write a predictions file as COCO results JSON, YOLO text files or a CSV.",
        epilog=_EPILOG,
    )
    parser.add_argument("source", metavar="PREDICTIONS", help="written by tpudet predict")
    parser.add_argument("target", metavar="RESULT", help="file to write; --to yolo: folder")
    parser.add_argument("--to", required=True, choices=("coco", "yolo", "csv"), help="format")
    parser.add_argument("--images", metavar="DIR", help="folder of the images, for their sizes")
    parser.add_argument(
        "--ground_truth",
        metavar="FILE",
        help="COCO instances JSON, for ids and sizes of images, upright, and ids of categories",
    )
    parser.add_argument(
        "--format",
        dest="template",
        metavar="TEMPLATE",
        help="csv: a row, such as '{image},{label},{score:.4f},{x1},{y1},{x2},{y2}'",
    )
    parser.add_argument(
        "--header", metavar="LINE", help="csv: first line, '' for none (default: by --format)"
    )
    parser.add_argument(
        "--coordinates",
        choices=("fractions", "pixels"),
        default="fractions",
        help="csv: unit of the boxes [%(default)s]",
    )
    parser.add_argument(
        "--min_score",
        type=share,
        default=0.0,
        metavar="X",
        help="leave out lower scores [%(default)s]",
    )
    parser.add_argument(
        "--no_scores",
        action="store_true",
        help="yolo: leave out the scores, as labels to train on or to correct have none",
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace RESULT")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.inference.convert_predictions import convert_predictions

    options = vars(arguments)
    return convert_predictions(pixels=options.pop("coordinates") == "pixels", **options)
