"""COCO ground truth of an Open Images box CSV, with the same images as its TFRecords.

Images are in the order of the TFRecords that `gen_tfrecords --split val` writes from the same CSV,
classes and --image_check: `id` is the number of the record, from 0.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from tpudet.detection.ops.numpy_boxes import box_areas, boxes_to_xywh
from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.records.subsets import select_classes
from tpudet.detection.preparation.sources.annotations import COORDINATES, Annotations, Finding
from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.detection.preparation.sources.checks import (
    ImageRejected,
    check_boxes,
    check_image,
    check_labels,
)
from tpudet.detection.preparation.sources.input_files import require_images
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.class_list import read_classes
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files.inputs import read_input
from tpudet.trainkit.files.storage import write_text
from tpudet.trainkit.jobs.steps import Step


def coco_ground_truth(
    annotations: Annotations, *, image_directory: str, check_pixels: bool = False
) -> tuple[dict[str, Any], list[Finding]]:
    """Builds the content of a COCO instances JSON with the checks of the TFRecord writer.

    Images that the writer leaves out are left out here too. Image ids are record numbers, from 0.
    Annotation ids count from 1, because evaluators take 0 for no match. Category ids are class ids.
    `bbox` is x, y, width, height and `area` width * height, floats in pixels of the image as stored
    in the record; `iscrowd` is IsGroupOf.

    Args:
        annotations: relative boxes, images in the order of the records.
        image_directory: folder of the images.
        check_pixels: decode every image, as the writer does with `--image_check full`.

    Returns:
        The content, and what was repaired or left out.

    Raises:
        UserError: an image file cannot be read.
    """
    files = annotations.images["file"]
    labelled = check_labels(annotations.boxes, files, annotations.class_ids())
    checked = check_boxes(labelled.boxes, files, np.ones((len(files), 2)))
    findings = [*annotations.findings, *labelled.findings, *checked.findings]
    entries, sizes = [], np.zeros((len(files), 2))
    numbers = np.full(len(files), -1)  # record number by row; -1: left out
    for row, file in enumerate(tqdm(files, desc="sizes", unit="image", delay=PROGRESS_DELAY)):
        encoded = read_input(os.path.join(image_directory, file), "Image")
        try:
            image = check_image(
                encoded, file=file, height=np.nan, width=np.nan, check_pixels=check_pixels
            ).image
        except ImageRejected as rejected:
            findings.append(Finding(file, rejected.reason, rejected.detail, repaired=False))
            continue
        numbers[row], sizes[row] = len(entries), (image.height, image.width)
        entries.append(
            {
                "id": len(entries),
                "file_name": file,
                "source_id": annotations.images["source_id"].iat[row],
                "height": image.height,
                "width": image.width,
            }
        )
    classes = enumerate(annotations.classes, start=1)
    content = {
        "images": entries,
        "annotations": _annotations(checked.boxes, numbers, sizes),
        "categories": [{"id": number, "name": entry.name} for number, entry in classes],
    }
    return content, findings


def _annotations(boxes: pd.DataFrame, numbers: np.ndarray, sizes: np.ndarray) -> list[dict]:
    rows = boxes["image"].to_numpy()
    boxes, rows = boxes[numbers[rows] >= 0], rows[numbers[rows] >= 0]
    pixels = boxes[list(COORDINATES)].to_numpy() * np.tile(sizes[rows], 2)
    columns = (
        numbers[rows].tolist(),
        boxes["class_id"].tolist(),
        boxes_to_xywh(pixels).tolist(),
        box_areas(pixels).tolist(),
        boxes["is_crowd"].astype(int).tolist(),
    )
    names = ("image_id", "category_id", "bbox", "area", "iscrowd")
    return [
        {"id": number, **dict(zip(names, values, strict=True))}
        for number, values in enumerate(zip(*columns, strict=True), start=1)
    ]


def write_coco_json(
    output: str,
    source: str,
    classes: str,
    *,
    image_directory: str,
    check_pixels: bool = False,
    keep_all_images: bool = False,
) -> str:
    """Writes the COCO ground truth of a box CSV.

    Args:
        output: the JSON file to write.
        source: a box CSV; boxes of other classes are ignored.
        classes: a class list.
        image_directory: folder of the images.
        check_pixels: as for `coco_ground_truth`.
        keep_all_images: also list images without a box of the classes, as make_tfrecords does.

    Returns:
        A summary with counts and with what was repaired or left out.

    Raises:
        UserError: a file cannot be read, images are missing (counted, the first ten are named), or
            no image can be used.
    """
    annotations = read_open_images(source, images=image_directory, what="INPUT")
    annotations = select_classes(
        annotations, read_classes(classes), keep_all_images=keep_all_images
    )
    advice = "Fetch them: the JSON must list the same images as the TFRecords."
    require_images((image_directory,), annotations.images["file"].tolist(), advice)
    content, findings = coco_ground_truth(
        annotations, image_directory=image_directory, check_pixels=check_pixels
    )
    if not content["images"]:
        raise UserError(
            "No image can be used, nothing was written: "
            f"{_count_reasons(findings, repaired=False)}."
        )
    write_text(output, json.dumps(content, ensure_ascii=False) + "\n")
    return (
        f"{len(content['images'])} images, {len(content['annotations'])} boxes, "
        f"{len(content['categories'])} classes. "
        f"Left out: {_count_reasons(findings, repaired=False)}. "
        f"Repaired: {_count_reasons(findings, repaired=True)}."
    )


def _count_reasons(findings: Sequence[Finding], *, repaired: bool) -> str:
    """Returns the count of each kind of finding with the first files concerned."""
    chosen = [finding for finding in findings if finding.repaired == repaired]
    counts = []
    for reason, count in Counter(finding.reason for finding in chosen).most_common():
        files = list(dict.fromkeys(f.file for f in chosen if f.reason == reason))
        counts.append(f"{count} {reason} ({listing(files)})")
    return "; ".join(counts) or "nothing"


def coco_json_step(
    output: str,
    source: str,
    classes: str,
    *,
    image_directory: str,
    check_pixels: bool = False,
    keep_all_images: bool = False,
) -> Step:
    """Returns the step that runs `write_coco_json`."""
    return Step(
        name=f"Write {os.path.basename(output)}",
        inputs=(source, classes, image_directory),
        options={"check_pixels": check_pixels, "keep_all_images": keep_all_images},
        outputs=(output,),
        run=lambda: write_coco_json(
            output,
            source,
            classes,
            image_directory=image_directory,
            check_pixels=check_pixels,
            keep_all_images=keep_all_images,
        ),
        code=STEP_CODE,
    )
