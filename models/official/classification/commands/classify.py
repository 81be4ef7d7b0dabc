"""Predicts the classes of images with an exported classifier, and writes them as CSV."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command

_EPILOG = """\
The CSV has one row per image, `id,label`, sorted by id. The id is the name of the file without its
extension, with its class folder if two have one name, or that of the record; the label is the
identifier of the most probable class, or, of a model with model.loss sigmoid, those of all classes
from a probability of 0.5 on, joined by `;`. With --probabilities a column for each class follows.
If the images have labels, the accuracy is printed; of several classes all must be right.

examples:
  tpudet classify predictions.csv output/final/flowers-112 --images photos
  tpudet classify submission.csv SAVED_MODEL --records $STORAGE/converted/flowers --split test

exit codes: 0 done, 1 some images could not be read or predicted (they are listed), 2 wrong
arguments or input
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet classify", __doc__, epilog=_EPILOG)
    parser.add_argument("output", metavar="FILE.csv", help="file to write")
    parser.add_argument(
        "saved_model",
        metavar="SAVED_MODEL",
        help="a SavedModel, or a folder that has some; the newest is taken",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", metavar="DIR", help="folder of images, or of class folders")
    source.add_argument("--records", metavar="DIR", help="folder of TFRecords")
    parser.add_argument("--split", default="test", help="of the records (test); or several, a+b")
    parser.add_argument(
        "--batch_size", type=positive_integer, default=32, help="images per call (%(default)s)"
    )
    parser.add_argument(
        "--probabilities", action="store_true", help="add the probability of each class"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE.csv")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    from tpudet.classification.inference.classify import classify

    return classify(
        arguments.output,
        arguments.saved_model,
        images=arguments.images,
        records=arguments.records,
        split=arguments.split,
        batch_size=arguments.batch_size,
        with_probabilities=arguments.probabilities,
        force=arguments.force,
    )
