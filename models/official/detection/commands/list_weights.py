"""Lists the pretrained weights that `train.weights: NAME` fetches.

They are kept in the folder that TPUDET_WEIGHTS_DIR names, ~/.cache/tpudet/weights by default; there
you can also put files by hand, on a machine without a connection.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return run_command(new_parser("tpudet list_weights", __doc__), argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    del arguments
    from tpudet.trainkit.weights.sources import list_weights

    return list_weights()
