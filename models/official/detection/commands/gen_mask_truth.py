"""Writes the ground truth of masks as one CSV, as evaluate_submission --masks reads it."""

import argparse
from collections.abc import Sequence

from tpudet.detection.commands.preparation_arguments import add_overwrite_argument, add_positionals
from tpudet.detection.preparation.open_images.challenge import (
    SEGMENTATION_BOXES,
    SEGMENTATION_MASKS,
)
from tpudet.trainkit.command_line import new_parser, run_command
from tpudet.trainkit.files.locations import data_path, storage_path

_EPILOG = """example:
  tpudet gen_mask_truth
  tpudet evaluate_submission SUB $STORAGE/prepared/val_masks.csv --masks \\
      --hierarchy challenge-2019-label300-segmentable-hierarchy.json

Open Images publishes masks as PNG files; its scorer wants one CSV: ImageID,LabelName,ImageWidth,
ImageHeight,XMin,YMin,XMax,YMax,IsGroupOf,Mask (base64 of zlib of COCO run lengths, blank without).
exit codes: 0 done or up to date, 2 wrong arguments or inputs (nothing is left half-written)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = new_parser("tpudet gen_mask_truth", __doc__, epilog=_EPILOG)
    boxes, masks = (name.format("validation") for name in (SEGMENTATION_BOXES, SEGMENTATION_MASKS))
    add_positionals(
        parser,
        ("output", "OUTPUT", storage_path("prepared", "val_masks.csv"), "CSV to write"),
        ("source", "INPUT", data_path(boxes), "box CSV"),
        ("mask_csv", "MASKS", data_path(masks), "masks by box"),
    )
    parser.add_argument(
        "--mask_dir",
        default=data_path("validation_masks"),
        metavar="DIR",
        help="folder of the masks, or of the unpacked archives (default: %(default)s)",
    )
    parser.add_argument(
        "--image_dir",
        default=data_path("validation"),
        metavar="DIR",
        help="folder of the images (default: %(default)s)",
    )
    add_overwrite_argument(parser, "an existing file")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> None:
    from tpudet.detection.preparation.open_images.mask_truth import mask_truth_step
    from tpudet.detection.preparation.sources.mask_files import MaskFiles
    from tpudet.trainkit.jobs.steps import run_step

    step = mask_truth_step(
        arguments.output,
        arguments.source,
        MaskFiles(arguments.mask_csv, arguments.mask_dir),
        image_directory=arguments.image_dir,
    )
    run_step(step, overwrite=arguments.overwrite)
