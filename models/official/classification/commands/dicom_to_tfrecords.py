"""Writes TFRecords of DICOM slices, with the labels of the RSNA haemorrhage challenge."""

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
With --labels, the images go to fold_0, fold_1, ..., all those of a patient to one fold; without, to
the split test. A record holds stored values, slope and intercept: windows are a setting of training
(data.windows), applied after the resizing, so that pixels are rounded once. Files that cannot be
decoded are left out and listed. The same command resumes an interrupted run.

examples:
  tpudet dicom_to_tfrecords stage_2_train --labels stage_2_train.csv --output $STORAGE/converted/ct
  tpudet dicom_to_tfrecords stage_2_test --output $STORAGE/converted/ct
  tpudet train rsna-r50_448 --model_dir RUN --set data.directory=$STORAGE/converted/ct

exit codes: 0 done, 2 wrong arguments or inputs, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet dicom_to_tfrecords", __doc__, epilog=_EPILOG)
    parser.add_argument("images", metavar="DIR", help="folder of <image id>.dcm")
    parser.add_argument("--labels", metavar="CSV", help="stage_1_train.csv or stage_2_train.csv")
    parser.add_argument(
        "--output", required=True, metavar="DIR", help="converted/PART; its last name is the part"
    )
    parser.add_argument(
        "--folds", type=positive_integer, default=5, metavar="N", help="from 2 (%(default)s)"
    )
    parser.add_argument(
        "--num_shards",
        type=positive_integer,
        metavar="N",
        help="files per split (about 100 MB each)",
    )
    parser.add_argument("--seed", type=natural_number, default=0, help="of the folds (0)")
    add_workers_argument(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace finished splits of other images"
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.classification.preparation.write_dicom import plan_dicom
    from tpudet.classification.preparation.write_records import write_splits

    plans, notes = plan_dicom(
        arguments.images,
        arguments.output,
        labels_file=arguments.labels,
        num_folds=arguments.folds,
        num_shards=arguments.num_shards,
        seed=arguments.seed,
    )
    for note in notes:
        print(note)
    write_splits(plans, workers=arguments.workers, overwrite=arguments.overwrite)
