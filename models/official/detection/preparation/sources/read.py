"""Reads annotations of any supported format."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tpudet.detection.preparation.sources.annotations import Annotations, rename_files
from tpudet.detection.preparation.sources.coco import read_coco
from tpudet.detection.preparation.sources.input_files import spelled_as_in_folder
from tpudet.detection.preparation.sources.mask_files import (
    add_open_images_masks,
    choose_mask_files,
    read_mask_folders,
)
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.preparation.sources.required_images import (
    require_inside,
    require_some_image,
)
from tpudet.detection.preparation.sources.table import Coordinates, read_table
from tpudet.detection.preparation.sources.voc import read_voc
from tpudet.detection.preparation.sources.yolo import read_yolo
from tpudet.detection.preparation.sources.yolo_layout import find_yolo_set
from tpudet.trainkit.errors import UserError


class Source(NamedTuple):
    """Annotations and images, as the user names them."""

    format: Literal["coco", "voc", "open_images", "yolo", "table", "mask_folders"]
    # COCO JSON, folder of VOC XML files or of mask folders, box CSV, data.yaml, CSV or Parquet
    annotations: str
    images: str | None  # folder; None is that of a data.yaml, or of mask folders
    image_list: str | None  # file of the images to take; None takes all
    classes: str | None  # class list; None derives it from the annotations
    include_unlabeled: bool  # open_images, table: also take images without a row
    include_masks: bool  # also read the segmentations
    mask_csv: str | None  # open_images: which box has which mask
    mask_dir: str | None  # open_images: folder of the masks
    columns: Mapping[str, str] | None  # table: names of columns by meaning
    coordinates: Coordinates | None  # table: unit of the boxes
    ignore_difficult: bool  # voc: boxes marked difficult become regions to ignore


class ReadSource(NamedTuple):
    """The contents of a source."""

    annotations: Annotations
    image_directory: str


def read_source(source: Source, yolo_splits: tuple[str, ...]) -> ReadSource:
    """Reads the annotations of a source.

    Args:
        source: as the user names it.
        yolo_splits: those of a data.yaml to take.

    Raises:
        UserError: a file is missing or malformed, or an option does not suit the format.
    """
    _check_options(source)
    if source.format == "yolo":
        dataset = find_yolo_set(source.annotations, yolo_splits, source.images)
        annotations = read_yolo(
            dataset,
            image_list=source.image_list,
            classes=source.classes,
            include_segmentation=source.include_masks,
        )
        directory = dataset.folder
    elif source.format == "mask_folders":
        directory = source.annotations
        annotations = read_mask_folders(
            directory, image_list=source.image_list, classes=source.classes
        )
    elif source.images is None:
        raise UserError(f"--format {source.format} needs --images, the folder of the images.")
    else:
        directory = source.images
        annotations = _read(source, directory)
    files = spelled_as_in_folder(directory, annotations.images["file"].tolist())
    annotations = rename_files(annotations, files)
    require_inside(directory, files)
    require_some_image(directory, files)
    return ReadSource(annotations, directory)


def _read(source: Source, images: str) -> Annotations:
    path, image_list, classes = source.annotations, source.image_list, source.classes
    if source.format == "coco":
        return read_coco(
            path,
            images=images,
            image_list=image_list,
            classes=classes,
            include_segmentation=source.include_masks,
        )
    if source.format == "voc":
        return read_voc(
            path,
            images=images,
            image_list=image_list,
            classes=classes,
            ignore_difficult=source.ignore_difficult,
        )
    if source.format == "table":
        return read_table(
            path,
            columns=source.columns or {},
            coordinates=source.coordinates or "pixels",
            images=images,
            image_list=image_list,
            classes=classes,
            include_unlabeled=source.include_unlabeled,
        )
    annotations = read_open_images(
        path,
        images=images,
        image_list=image_list,
        classes=classes,
        include_unlabeled=source.include_unlabeled,
    )
    masks = choose_mask_files(source.include_masks, source.mask_csv, source.mask_dir)
    return annotations if masks is None else add_open_images_masks(annotations, masks)


def _check_options(source: Source) -> None:
    kind = source.format
    formats = {
        "--images": (
            source.images is not None,
            ("coco", "voc", "yolo", "open_images", "table"),
        ),
        "--include_masks": (
            source.include_masks,
            ("coco", "yolo", "open_images", "mask_folders"),
        ),
        "--mask_csv": (source.mask_csv is not None, ("open_images",)),
        "--mask_dir": (source.mask_dir is not None, ("open_images",)),
        "--include_unlabeled": (source.include_unlabeled, ("open_images", "table")),
        "--columns": (source.columns is not None, ("table",)),
        "--coordinates": (source.coordinates is not None, ("table",)),
        "--ignore_difficult": (source.ignore_difficult, ("voc",)),
    }
    for option, (is_given, allowed) in formats.items():
        if is_given and kind not in allowed:
            names = ", ".join(allowed)
            raise UserError(f"{option} is for --format {names} only, not {kind}.")
    if kind == "table" and source.columns is None:
        raise UserError(
            "--format table needs --columns, such as image=image_id,xywh=bbox,class=source."
        )
