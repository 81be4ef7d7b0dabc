"""Exports a checkpoint as a SavedModel: `tpudet export --model_dir DIR --export_root DIR`.

The SavedModel takes encoded images, any number at once, and needs nothing of this toolkit. It is
written to `<export_root>/<name of model_dir>-<resolution>`.
"""

import argparse
import os
from collections.abc import Sequence

from tpudet.trainkit.backend_arguments import add_tensorflow_argument
from tpudet.trainkit.command_line import new_parser, run_command, start_logging


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see --help."""
    parser = new_parser("tpudet export", __doc__)
    parser.add_argument("--model_dir", required=True, help="the folder that train wrote")
    parser.add_argument("--export_root", required=True, help="folder for SavedModels")
    parser.add_argument("--step", default="latest", help="step number, latest or best (latest)")
    parser.add_argument(
        "--resolution",
        type=_canvas_size,
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
    parser.add_argument("--overwrite", action="store_true", help="replace an existing SavedModel")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    # A SavedModel is TensorFlow's, whichever backend trained the checkpoint.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    start_logging()
    from tpudet.detection.experiment import export

    directory, step = export(
        arguments.model_dir.rstrip("/"),
        export_root=arguments.export_root.rstrip("/"),
        step=arguments.step,
        canvas_size=arguments.resolution,
        boxes=arguments.boxes,
        overwrite=arguments.overwrite,
    )
    return f"{directory}: step {step}"


def _canvas_size(text: str) -> tuple[int, int] | None:
    """`640` and `512x768` as height and width; None if empty."""
    if not text:
        return None
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) > 0 for side in sides):
        raise argparse.ArgumentTypeError(f"`{text}` is not SIDE or HEIGHTxWIDTH, in pixels")
    return int(sides[0]), int(sides[-1])
