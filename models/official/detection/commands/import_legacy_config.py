"""Converts a RetinaNet or Mask R-CNN config of tensorflow/tpu or tpu_models to an experiment."""

import argparse
import sys
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file

_EPILOG = """
examples:
  tpudet import_legacy_config 4.1.0_effnet_b5_45k_90k_1024_batch_32.yaml
  tpudet import_legacy_config OLD.yaml --output configs/yaml/retinanet/4.1.0_b5.yaml

The experiment goes to --output, else to standard output. What had no effect in the old file, and
what became of it, goes to standard error and into the comment at the top of the new one.

exit codes: 0 converted, 2 wrong usage, a key unknown to the tpu_models versions with a
batch_norm per part, or a value that has no counterpart
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet import_legacy_config", __doc__, epilog=_EPILOG)
    parser.add_argument("old", metavar="OLD.yaml", help="a file or bucket path")
    parser.add_argument("--output", metavar="NEW.yaml", default="", help="file to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace NEW.yaml if it exists")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.config import ExperimentConfig
    from tpudet.detection.legacy.import_file import convert_file
    from tpudet.trainkit.config.decode import decode
    from tpudet.trainkit.config.yaml_tree import parse_tree

    output = arguments.output
    if output and storage.exists(output) and not arguments.force:
        raise UserError(f"{output} exists; --force replaces it")
    text, remarks = convert_file(arguments.old)
    decode(ExperimentConfig, parse_tree(text, f"{arguments.old}, converted"))
    if output:
        with claimed_file(output, "w", force=arguments.force) as file:
            file.write(text)
    else:
        print(text, end="")
    print(remarks, file=sys.stderr)
