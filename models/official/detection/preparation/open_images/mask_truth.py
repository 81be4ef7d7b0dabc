"""The ground truth of the segmentation track in one CSV, as its evaluation reads it."""

import csv
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from tpudet.detection.ops.numpy_masks import encode_rle
from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.sources.annotations import COORDINATES, Annotations
from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.detection.preparation.sources.checks import ImageRejected, check_image
from tpudet.detection.preparation.sources.input_files import require_images
from tpudet.detection.preparation.sources.mask_files import MaskFiles, add_open_images_masks
from tpudet.detection.preparation.sources.masks import draw_mask
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.detection.submission.mask_text import encode_mask
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.jobs.steps import Step

_SIDES = ("XMin", "YMin", "XMax", "YMax")
_HEADER = ("ImageID", "LabelName", "ImageWidth", "ImageHeight", *_SIDES, "IsGroupOf", "Mask")


def write_mask_truth(output: str, source: str, masks: MaskFiles, *, image_directory: str) -> str:
    """Writes the boxes of a CSV with their masks; a box without one has a blank.

    A mask has the size of its image, as the masks of a submission have: published ones of another
    size are resampled to it.

    Args:
        output: the CSV to write, ImageID,LabelName,ImageWidth,ImageHeight,XMin,YMin,XMax,YMax,
            IsGroupOf,Mask, the mask being base64 of zlib of COCO run lengths.
        source: a box CSV.
        masks: of the boxes.
        image_directory: folder of the images, of which the headers are read.

    Returns:
        A summary with counts.

    Raises:
        UserError: a file cannot be read, no mask belongs to a box, images are missing or damaged,
            or a mask of a box cannot be used; the first ten are named.
    """
    boxes = read_open_images(source, images=image_directory, what="INPUT")
    files = boxes.images["file"].tolist()
    require_images((image_directory,), files, "Fetch them: a mask has the size of its image.")
    joined = add_open_images_masks(boxes, masks)
    unusable: list[str] = []
    num_masks = 0
    with storage.whole_file(output, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for row in _rows(joined, image_directory, unusable):
            writer.writerow(row)
            num_masks += row[-1] != ""
        if unusable:
            raise UserError(
                f"{len(unusable)} of {num_masks + len(unusable)} masks are missing, damaged, empty "
                f"or of another shape than their image: {listing(unusable)}."
            )
    return f"{len(boxes.boxes)} boxes in {len(files)} images, {num_masks} of them with a mask."


def _rows(
    annotations: Annotations, image_directory: str, unusable: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the CSV, and adds the paths of masks that cannot be used to `unusable`."""
    boxes = annotations.boxes
    starts = np.searchsorted(boxes["image"], np.arange(len(annotations.images) + 1))
    columns = (
        boxes["label"].tolist(),
        boxes[list(COORDINATES)].to_numpy().tolist(),
        boxes["is_crowd"].astype(int).tolist(),
        boxes["segmentation"].tolist(),
    )
    images = annotations.images[["source_id", "file"]].itertuples(index=False)
    progress = tqdm(images, total=len(starts) - 1, unit="image", delay=PROGRESS_DELAY)
    for number, (image_id, file) in enumerate(progress):
        height, width = _size(image_directory, file)
        own = slice(starts[number], starts[number + 1])
        for label, (y1, x1, y2, x2), group, path in zip(*(c[own] for c in columns), strict=True):
            mask = ""
            if path is not None:
                mask = _mask_text(path, height, width)
                if not mask:
                    unusable.append(path)
            yield image_id, label, width, height, x1, y1, x2, y2, group, mask


def _size(image_directory: str, file: str) -> tuple[int, int]:
    encoded = read_input(os.path.join(image_directory, file), "Image")
    try:
        found = check_image(encoded, file=file, height=np.nan, width=np.nan, check_pixels=False)
    except ImageRejected as rejected:
        raise UserError(f"Image {file}: {rejected.reason} {rejected.detail}".rstrip()) from rejected
    return found.image.height, found.image.width


def _mask_text(path: str, height: int, width: int) -> str:
    """The text of a mask file at the size of its image; empty if it cannot be used."""
    mask = draw_mask(path, height=height, width=width)
    return "" if mask is None else encode_mask(encode_rle(mask > 0))


def mask_truth_step(output: str, source: str, masks: MaskFiles, *, image_directory: str) -> Step:
    """Returns the step that runs `write_mask_truth`."""
    return Step(
        name=f"Write {os.path.basename(output)}",
        inputs=(source, masks.table, masks.directory, image_directory),
        options={},
        outputs=(output,),
        run=lambda: write_mask_truth(output, source, masks, image_directory=image_directory),
        code=STEP_CODE,
    )
