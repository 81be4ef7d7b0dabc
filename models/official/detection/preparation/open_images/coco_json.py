"""COCO ground truth of an Open Images box CSV, record by record as the TFRecords have it."""

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from tpudet.detection.preparation.open_images.default_paths import CLASSES, data_path, storage_path
from tpudet.detection.preparation.records.subsets import select_classes
from tpudet.detection.preparation.sources.annotations import (
    COORDINATES,
    Annotations,
    Finding,
    PreparationError,
)
from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.detection.preparation.sources.checks import (
    ImageRejected,
    check_boxes,
    check_image,
    check_labels,
)
from tpudet.detection.preparation.sources.input_files import (
    read_bytes,
    read_classes,
    require_images,
)
from tpudet.detection.preparation.sources.open_images import read_open_images
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files.storage import write_text
from tpudet.trainkit.jobs.steps import Step, run_step

_EXAMPLE = """example:
  scripts/gen_coco_val_json.py val_part_0.json val_part_0.csv classes_part_0.csv \\
      --image_dir $DATA/validation

Images are in the order of the TFRecords that gen_tfrecords.py --split val writes from the same CSV,
classes and --image_check: `id` is the number of the record, from 0, `source_id` that of the record.
exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written)
"""
_SHOWN = 10


def coco_ground_truth(
    annotations: Annotations, *, image_directory: str, check_pixels: bool = False
) -> tuple[dict[str, Any], list[Finding]]:
    """Builds the content of a COCO instances JSON, with the checks that records pass.

    Images that the writer leaves out are not there either. Numbers: image ids are record numbers,
    from 0; annotation ids count from 1, for evaluators take 0 as no match; category ids are class
    ids, the row in the class list from 1; `bbox` is x, y, width, height and `area` width * height,
    floats in pixels of the picture as the record has it; `iscrowd` is IsGroupOf.

    Args:
        annotations: relative boxes, images in the order of the records.
        image_directory: where the pictures are.
        check_pixels: decode every picture, as the writer does with `--image_check full`.

    Returns:
        The content, and what was repaired or left out.

    Raises:
        PreparationError: a picture's file cannot be read.
    """
    files = annotations.images["file"]
    labelled = check_labels(annotations.boxes, files, annotations.class_ids())
    checked = check_boxes(labelled.boxes, files, np.ones((len(files), 2)))
    findings = [*annotations.findings, *labelled.findings, *checked.findings]
    entries, sizes = [], np.zeros((len(files), 2))
    numbers = np.full(len(files), -1)  # of the record, by row; -1: left out
    for row, file in enumerate(tqdm(files, desc="sizes", unit="image", delay=PROGRESS_DELAY)):
        encoded = read_bytes(os.path.join(image_directory, file), "Image")
        try:
            image, _ = check_image(
                encoded, file=file, height=np.nan, width=np.nan, check_pixels=check_pixels
            )
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
    sides = pixels[:, 2:] - pixels[:, :2]
    columns = (
        numbers[rows].tolist(),
        boxes["class_id"].tolist(),
        np.column_stack([pixels[:, 1], pixels[:, 0], sides[:, 1], sides[:, 0]]).tolist(),
        sides.prod(axis=1).tolist(),
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
    """Writes the ground truth of a box CSV.

    Args:
        output: the JSON file to write.
        source: a box CSV; boxes of other classes are passed over.
        classes: a class list.
        image_directory: where the pictures are.
        check_pixels: as `coco_ground_truth`.
        keep_all_images: also images without a box of the classes, as make_tfrecords.py has them.

    Returns:
        Counts, and what was repaired or left out, in words.

    Raises:
        PreparationError: a file cannot be read, pictures are missing (counted, the first ten
            named), or none can be used.
    """
    annotations = read_open_images(source, images=image_directory, what="INPUT")
    annotations = select_classes(
        annotations, read_classes(classes), keep_all_images=keep_all_images
    )
    advice = "Fetch them: the JSON must name the images that the TFRecords hold."
    require_images((image_directory,), annotations.images["file"].tolist(), advice)
    content, findings = coco_ground_truth(
        annotations, image_directory=image_directory, check_pixels=check_pixels
    )
    if not content["images"]:
        raise PreparationError(
            f"No image can be used, nothing was written: {_in_words(findings, repaired=False)}."
        )
    write_text(output, json.dumps(content, ensure_ascii=False) + "\n")
    return (
        f"{len(content['images'])} images, {len(content['annotations'])} boxes, "
        f"{len(content['categories'])} classes. Left out: {_in_words(findings, repaired=False)}. "
        f"Repaired: {_in_words(findings, repaired=True)}."
    )


def _in_words(findings: Sequence[Finding], *, repaired: bool) -> str:
    """Counts by kind, each with the first files that it concerns."""
    chosen = [finding for finding in findings if finding.repaired == repaired]
    words = []
    for reason, count in Counter(finding.reason for finding in chosen).most_common():
        files = list(dict.fromkeys(f.file for f in chosen if f.reason == reason))
        names = ", ".join(files[:_SHOWN] + ["..."] * (len(files) > _SHOWN))
        words.append(f"{count} {reason} ({names})")
    return "; ".join(words) or "nothing"


def coco_json_step(
    output: str,
    source: str,
    classes: str,
    *,
    image_directory: str,
    check_pixels: bool = False,
    keep_all_images: bool = False,
) -> Step:
    """The step of `write_coco_json`."""
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
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="gen_coco_val_json.py",
        description="Write the COCO ground truth of a box CSV, as its TFRecords have it.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, metavar, default, text in (
        ("output", "OUTPUT", storage_path("prepared", "val.json"), "JSON to write"),
        ("source", "INPUT", storage_path("prepared", "val.csv"), "box CSV"),
        ("classes", "CLASSES", data_path(CLASSES), "classes, `MID,name` a line"),
    ):
        parser.add_argument(
            name, metavar=metavar, nargs="?", default=default, help=f"{text} (default: %(default)s)"
        )
    parser.add_argument(
        "--image_dir",
        default=data_path("validation"),
        metavar="DIR",
        help="folder of the pictures (default: %(default)s)",
    )
    parser.add_argument(
        "--image_check",
        choices=("full", "headers"),
        default="headers",
        help="as of the TFRecords; full: decode every image (default: %(default)s)",
    )
    parser.add_argument(
        "--keep_all_images",
        action="store_true",
        help="also list images without a box of the classes, as make_tfrecords.py writes them",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file of other origin")
    return run_command(parser, argv, _run)


def _run(arguments: argparse.Namespace) -> int:
    step = coco_json_step(
        arguments.output,
        arguments.source,
        arguments.classes,
        image_directory=arguments.image_dir,
        check_pixels=arguments.image_check == "full",
        keep_all_images=arguments.keep_all_images,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
