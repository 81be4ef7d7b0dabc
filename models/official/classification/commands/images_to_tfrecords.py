"""Writes TFRecords, classes.csv and manifests from folders of images sorted by split and class."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import (
    add_workers_argument,
    natural_number,
    new_parser,
    positive_integer,
    run_command,
)

_EPILOG = """\
DIR holds train, and if wanted val (or validation, or valid) and test, each with a folder of images
for each class. Images beside class folders are an error; a split without class folders has no
labels, or, like ImageNet's validation, those of synset_labels.txt, one per line in the order of the
names.

Images are files of any of these extensions, in any case, whatever their format: jpg jpeg jpe jfif
png webp bmp gif tif tiff avif jp2 ppm pgm pnm. What TensorFlow would decode wrongly (CMYK, GIF, 16
bits, EXIF orientation, ...) is converted. What is damaged, has another extension or is in a folder
of a class folder is left out. The manifest lists both. A split that would lose all images of a
class is refused. The same command resumes an interrupted run.

example:
  tpudet images_to_tfrecords flowers --output $STORAGE/converted/flowers --presize 256

exit codes: 0 done, 2 wrong arguments or inputs, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet images_to_tfrecords", __doc__, epilog=_EPILOG)
    parser.add_argument("source", metavar="DIR", help="has the folders train, val and test")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="converted/PART; its last name is the part"
    )
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="class list, identifier,name; folders have either name (the folders of train, sorted)",
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files per split (about 100 MB each)",
    )
    parser.add_argument(
        "--presize",
        type=positive_integer,
        metavar="PIXELS",
        help="reduce larger images to this shorter side; training then decodes less (as they are)",
    )
    parser.add_argument(
        "--seed", type=natural_number, default=0, help="of the order of the training images (0)"
    )
    add_workers_argument(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace finished splits of other images"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.classification.preparation.plan_splits import plan_splits
    from tpudet.classification.preparation.write_records import write_splits

    plans, notes = plan_splits(
        arguments.source,
        arguments.output,
        classes_file=arguments.classes,
        num_shards=arguments.num_shards,
        presize=arguments.presize,
        seed=arguments.seed,
    )
    for note in notes:
        print(note)
    write_splits(plans, workers=arguments.workers, overwrite=arguments.overwrite)
