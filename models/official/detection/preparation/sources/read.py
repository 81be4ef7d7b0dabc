"""The command-line arguments that say what to read, shared by the commands, and the reading."""

import argparse
import os

from tpudet.detection.preparation.sources.annotations import Annotations, PreparationError
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.input_files import require_some_image
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.trainkit.command_line import positive_integer


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --format, --annotations, --images and what goes with them."""
    parser.add_argument(
        "--format",
        required=True,
        choices=("coco", "voc", "open_images"),
        help="coco: an instances JSON; voc: a folder of XML files; open_images: a CSV",
    )
    parser.add_argument("--annotations", required=True, metavar="PATH")
    parser.add_argument("--images", required=True, metavar="DIR", help="folder of the pictures")
    parser.add_argument(
        "--image_list", metavar="FILE", help="take these images only (VOC: ImageSets/Main/*.txt)"
    )
    parser.add_argument(
        "--classes",
        metavar="FILE",
        help="`id,name` a line; by default the categories, names or labels of the annotations",
    )
    parser.add_argument(
        "--include_unlabeled",
        action="store_true",
        help="open_images: also take the images of the folder that have no row",
    )
    parser.add_argument(
        "--include_masks", action="store_true", help="coco: check and write the segmentations"
    )
    add_workers_argument(parser)


def add_workers_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --workers."""
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one a CPU)",
    )


def read_annotations(arguments: argparse.Namespace) -> Annotations:
    """Reads what the arguments name.

    Raises:
        PreparationError: something is missing or malformed, or an option does not suit the format.
    """
    kind = arguments.format
    if arguments.include_masks and kind != "coco":
        raise PreparationError(f"--include_masks suits --format coco only, not {kind}.")
    if arguments.include_unlabeled and kind != "open_images":
        raise PreparationError(f"--include_unlabeled suits --format open_images only, not {kind}.")
    path, image_list, classes = arguments.annotations, arguments.image_list, arguments.classes
    if kind == "coco":
        annotations = read_coco(
            path,
            image_list=image_list,
            classes=classes,
            include_segmentation=arguments.include_masks,
        )
    elif kind == "voc":
        annotations = read_voc(
            path, images=arguments.images, image_list=image_list, classes=classes
        )
    else:
        annotations = read_open_images(
            path,
            images=arguments.images,
            image_list=image_list,
            classes=classes,
            include_unlabeled=arguments.include_unlabeled,
        )
    require_some_image(arguments.images, annotations.images["file"].tolist())
    return annotations
