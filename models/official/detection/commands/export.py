"""Exports a checkpoint as a SavedModel: `tpudet export --model_dir DIR --export_root DIR`.

The SavedModel takes encoded images, any number at once, and does not need this toolkit. It is
written to `<export_root>/<name of model_dir>-<resolution>`.
"""

import argparse
from collections.abc import Sequence
from types import ModuleType

from tpudet.trainkit.backend_arguments import add_tensorflow_argument
from tpudet.trainkit.command_line import new_parser
from tpudet.trainkit.experiment_commands import add_export_arguments, run_export


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet export", __doc__)
    add_export_arguments(parser)
    parser.add_argument(
        "--resolution",
        type=_canvas_size,
        dest="canvas_size",
        metavar="SIDE|HEIGHTxWIDTH",
        help="canvas in pixels, rounded up to multiples of the model's stride (that of training)",
    )
    parser.add_argument(
        "--boxes",
        choices=("normalized", "pixels"),
        default="normalized",
        help="boxes as fractions of the original image, or in its pixels (normalized)",
    )
    add_tensorflow_argument(parser)
    return run_export(parser, argv, _experiment, options=("canvas_size", "boxes"))


def _experiment() -> ModuleType:
    from tpudet.detection import experiment

    return experiment


def _canvas_size(text: str) -> tuple[int, int] | None:
    """`640` and `512x768` as height and width; None if empty."""
    if not text:
        return None
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"`{text}` is not SIDE or HEIGHTxWIDTH, in pixels")
    return int(sides[0]), int(sides[-1])
