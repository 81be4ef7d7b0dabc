"""Reads annotations of any supported format."""

from typing import Literal, NamedTuple

from tpudet.detection.preparation.sources.annotations import Annotations
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.input_files import require_some_image
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.trainkit.errors import UserError


class Source(NamedTuple):
    """Annotations and images, as the user names them."""

    format: Literal["coco", "voc", "open_images"]
    annotations: str  # COCO JSON, folder of VOC XML files, or box CSV
    images: str  # folder
    image_list: str | None  # file of the images to take; None takes all
    classes: str | None  # class list; None derives it from the annotations
    include_unlabeled: bool  # open_images: also take images without a row
    include_masks: bool  # coco: also read the segmentations


def read_annotations(source: Source) -> Annotations:
    """Reads the annotations of a source.

    Raises:
        UserError: a file is missing or malformed, or an option does not suit the format.
    """
    kind = source.format
    if source.include_masks and kind != "coco":
        raise UserError(f"--include_masks is for --format coco only, not {kind}.")
    if source.include_unlabeled and kind != "open_images":
        raise UserError(f"--include_unlabeled is for --format open_images only, not {kind}.")
    path, image_list, classes = source.annotations, source.image_list, source.classes
    if kind == "coco":
        annotations = read_coco(
            path,
            image_list=image_list,
            classes=classes,
            include_segmentation=source.include_masks,
        )
    elif kind == "voc":
        annotations = read_voc(path, images=source.images, image_list=image_list, classes=classes)
    else:
        annotations = read_open_images(
            path,
            images=source.images,
            image_list=image_list,
            classes=classes,
            include_unlabeled=source.include_unlabeled,
        )
    require_some_image(source.images, annotations.images["file"].tolist())
    return annotations
