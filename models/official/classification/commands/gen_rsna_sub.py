"""Writes the submission of the RSNA haemorrhage challenge from a trained classifier."""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import (
    add_set_argument,
    new_parser,
    run_command,
    start_logging,
)
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.storage import exists

_EPILOG = """\
Every row of the sample submission gets a probability, in its order. Images that could not be
decoded get the mean of the others, and are listed.

example:
  tpudet gen_rsna_sub submission.csv --model_dir $STORAGE/saved/rsna-r50-fold_0 \\
      --sample_submission stage_2_sample_submission.csv

exit codes: 0 done, 2 wrong arguments or inputs
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet gen_rsna_sub", __doc__, epilog=_EPILOG)
    parser.add_argument("output", metavar="FILE.csv", help="file to write")
    parser.add_argument("--model_dir", required=True, help="the folder that train wrote")
    parser.add_argument("--step", default="best", help="step number, latest or best (best)")
    parser.add_argument("--split", default="test", help="records to predict (test)")
    parser.add_argument("--sample_submission", required=True, metavar="CSV", help="its rows")
    add_set_argument(
        parser, "set one value of the experiment, e.g. data.directory=DIR; may be repeated"
    )
    parser.add_argument("-f", "--force", action="store_true", help="replace FILE.csv")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    start_logging()
    from tpudet.classification.experiment import predict_split
    from tpudet.classification.inference.rsna_submission import read_sample, write_submission
    from tpudet.classification.preparation.rsna_labels import CLASSES, image_id_of

    if exists(arguments.output) and not arguments.force:
        raise UserError(f"{arguments.output} exists: --force replaces it")
    sample = read_sample(arguments.sample_submission)
    names, probabilities = predict_split(
        arguments.model_dir.rstrip("/"),
        step=arguments.step,
        split=arguments.split,
        class_names=[entry.name for entry in CLASSES],
        overrides=arguments.overrides,
    )
    by_id = {image_id_of(name): row for name, row in zip(names, probabilities, strict=True)}
    return write_submission(arguments.output, by_id, sample=sample, force=arguments.force)
