"""Exports a classifier as a SavedModel: `tpudet export --model_dir DIR --export_root DIR`.

The SavedModel takes encoded images, any number at once, returns probabilities, and needs nothing of
this toolkit. It is written to `<export_root>/<name of model_dir>-<resolution>`.
"""

import argparse
import os
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command, start_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet export", __doc__)
    parser.add_argument("--model_dir", required=True, help="the folder that train wrote")
    parser.add_argument("--export_root", required=True, help="folder for SavedModels")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing SavedModel")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    # A SavedModel is TensorFlow's, whichever backend trained the checkpoint.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    start_logging()
    from tpudet.classification.experiment import export

    directory, step = export(
        arguments.model_dir.rstrip("/"),
        export_root=arguments.export_root.rstrip("/"),
        step=arguments.step,
        overwrite=arguments.overwrite,
    )
    return f"{directory}: step {step}"
