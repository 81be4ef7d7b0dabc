"""Lists the tensors of a file of weights: names, shapes, types, norms and totals.

Reads TensorFlow checkpoints (TF1, TF2 and this project's), .h5, .weights.h5 and .keras of Keras,
folders of KerasHub's presets, .safetensors, .pth, .pt and .bin of PyTorch, and .pkl of Detectron2,
local or in a bucket.
"""

import argparse
import re
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, run_command

_EPILOG = r"""
examples:
  tpudet list_checkpoint output/saved/r50-part_1
  tpudet list_checkpoint efficientnet-lite0.pth --filter 'stem|\.bn1\.'
  tpudet list_checkpoint gs://bucket/resnet50/model.ckpt-112603 --without_averages

exit codes: 0 listed, 2 the file cannot be read, or no name matches --filter
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet list_checkpoint", __doc__, epilog=_EPILOG)
    parser.add_argument("file", metavar="FILE", help="file, checkpoint prefix or folder")
    parser.add_argument(
        "--filter",
        type=_pattern,
        default="",
        metavar="REGEX",
        help="list only names in which it is found",
    )
    parser.add_argument(
        "--without_averages",
        action="store_true",
        help="list the weights themselves, not the moving averages stored beside them",
    )
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.trainkit.weights.list_checkpoint import describe_weights

    return describe_weights(
        arguments.file, pattern=arguments.filter, prefer_averages=not arguments.without_averages
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        message = f"{text!r} is not a regular expression: {error}"
        raise argparse.ArgumentTypeError(message) from error
