"""Converts a SavedModel to LiteRT or ONNX: `tpudet convert_model SAVED_MODEL OUT.tflite`.

The file takes one image on its canvas at a time, [1, H, W, 3] uint8 RGB, and gives final
detections, suppression included. OUT.tflite.json beside it says how an image is placed, what comes
out, and the names of the classes.
"""

import argparse
from collections.abc import Sequence

from tpudet.trainkit.command_line import new_parser, positive_integer, run_command


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("tpudet convert_model", __doc__)
    parser.add_argument(
        "saved_model",
        metavar="SAVED_MODEL",
        help="a SavedModel, or a folder that has some; the newest is taken",
    )
    parser.add_argument(
        "out", metavar="OUT", help="file to write; .tflite or .onnx says the format"
    )
    parser.add_argument(
        "--int8",
        metavar="SOURCE",
        help="int8 for CPUs (LiteRT), calibrated on a folder of images or on a split of a prepared "
        "set, FOLDER/SPLIT_PART; needs tpudet[int8] (float32)",
    )
    parser.add_argument(
        "--num_images", type=positive_integer, default=200, help="images to calibrate with (200)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> str:
    from tpudet.detection.inference.portable import convert_model
    from tpudet.trainkit.saved_model import find_saved_model

    directory = find_saved_model(arguments.saved_model)
    size = convert_model(
        directory,
        arguments.out,
        int8=arguments.int8,
        num_images=arguments.num_images,
        overwrite=arguments.overwrite,
    )
    return f"{arguments.out}: {size / 1e6:.1f} MB, from {directory}"
