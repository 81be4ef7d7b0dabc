"""Command: predictions and ground truth drawn into pictures, and one HTML page to look at them."""

import argparse
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tpudet.detection.submission.image_ids import ImageIdsError, read_ids
from tpudet.detection.submission.labels import read_class_file
from tqdm import tqdm

from tpudet.detection.inspection.image_panels import Picture, Scene, draw_picture, file_names
from tpudet.detection.inspection.objects import (
    InspectionError,
    Objects,
    match_classes,
    name_some,
    take_images,
)
from tpudet.detection.inspection.outcomes import find_outcomes, rank_worst
from tpudet.detection.inspection.output_folder import (
    PAGE_NAME,
    check_output,
    whole_folder,
    write_bytes,
)
from tpudet.detection.inspection.page import build_page
from tpudet.detection.inspection.predicted_objects import Found, read_found
from tpudet.detection.inspection.true_objects import Truth, read_true_boxes, read_true_split
from tpudet.detection.preparation.records.prepared_set import PreparedSet, read_prepared_set
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage
from tpudet.trainkit.image_folder import ImageFile, ImageFolderError, list_images
from tpudet.trainkit.images.standardize import ImageError, decode_rgb

_MAX_PICTURES = 500
_DEFAULT_PICTURES = 24
_THUMBNAIL_BYTES = 2_600_000  # of all together; base64 makes 3.5 MB of them in the page

_EPILOG = """examples:
  scripts/draw_predictions.py predictions.parquet --images images/ --output pictures/
  scripts/draw_predictions.py predictions.parquet --images images/ --output pictures/ \\
      --groundtruth $STORAGE/converted/part_0 --split val --worst 50
  scripts/draw_predictions.py sub.csv --images images/ --output pictures/ --classes classes.csv \\
      --groundtruth val_no_groups.csv --image_ids 0a1b2c3d4e5f6071,2a3b4c5d6e7f8091

The worst images are those with the highest badness: the number of missed objects plus the sum of
the scores of false predictions. Predictions of --min_score or more are matched class by class
within an image, by falling score, with the true object of the highest IoU, at 0.5 or more.

DIR/index.html opens in any browser without a network and stays below some 10 MB; a PNG an image
lies beside it, ground truth on the left and predictions on the right.
exit status: 0 done, 2 wrong arguments or unusable input
"""


class _Inputs(NamedTuple):
    found: Objects
    truth: Objects | None
    classes: tuple[ClassEntry, ...]
    notes: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run_command(_parser(), argv, _checked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draw_predictions.py",
        description="Draw predictions, beside the ground truth where it is given, into PNGs and "
        "one HTML page.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "predictions", metavar="PREDICTIONS", help="predictions file, or a submission (.csv)"
    )
    parser.add_argument("--images", metavar="DIR", required=True, help="folder of images")
    parser.add_argument(
        "--output", metavar="DIR", required=True, help="folder to make; for this page only"
    )
    parser.add_argument(
        "--groundtruth", metavar="PATH", help="a folder converted/PART, or a CSV of boxes"
    )
    parser.add_argument("--split", default="val", help="of a folder as --groundtruth [val]")
    parser.add_argument("--classes", metavar="FILE", help="class list, for a submission")
    parser.add_argument(
        "--min_score", type=_share, default=0.3, help="leave out predictions below it [0.3]"
    )
    parser.add_argument(
        "--skip_bad", action="store_true", help="leave bad rows of a submission out and count them"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--worst", type=_count, metavar="N", help="the N worst images")
    which.add_argument("--num", type=_count, metavar="N", help="N images evenly over all, by id")
    which.add_argument("--image_ids", metavar="ID,...", help="these images")
    which.add_argument("--ids", metavar="FILE", help="these images, one id a line")
    parser.add_argument("-f", "--force", action="store_true", help="replace the output folder")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PICTURES:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 to {_MAX_PICTURES}")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 to 1")
    return value


def _checked(arguments: argparse.Namespace) -> str:
    try:
        return _run(arguments)
    except (UserError, ImageFolderError, ImageIdsError) as error:
        raise InspectionError(str(error)) from error


def _run(arguments: argparse.Namespace) -> str:
    if arguments.worst and not arguments.groundtruth:
        raise InspectionError("--worst needs --groundtruth: without it nobody knows what is wrong")
    for path, what in (
        (arguments.predictions, "PREDICTIONS is what inference.py or gen_sub.py wrote"),
        (arguments.groundtruth, "--groundtruth is a folder converted/PART or a CSV of boxes"),
    ):
        if path and not storage.exists(path):
            raise InspectionError(f"no file {path}: {what}")
    check_output(arguments.output, force=arguments.force)
    wanted = _wanted_ids(arguments)
    inputs = _read_inputs(arguments, wanted)
    found, truth = inputs.found, inputs.truth
    outcomes = None
    if truth is not None:
        outcomes = find_outcomes(found, truth, len(inputs.classes))
    scene = Scene(found, truth, outcomes, inputs.classes, arguments.min_score)
    count = len(found.image_ids)
    num = arguments.num or _DEFAULT_PICTURES
    if wanted is not None:
        rows = np.searchsorted(found.image_ids, wanted)
        title = f"{len(rows)} chosen images"
    elif outcomes is not None and not arguments.num:
        rows = rank_worst(outcomes, arguments.worst or _DEFAULT_PICTURES)
        title = f"The {len(rows)} worst of {count:,} images"
        if not len(rows):
            return f"all {count:,} images are free of faults: nothing is drawn"
    else:
        rows = np.arange(min(num, count)) * count // min(num, count)
        title = f"{len(rows)} of {count:,} images"
    facts = {
        "Predictions": arguments.predictions,
        "Ground truth": arguments.groundtruth or "none",
        "Images": arguments.images,
        "Lowest score": f"{arguments.min_score:g}",
    }
    pictures = _write(scene, rows, arguments, title=title, facts=facts, notes=inputs.notes)
    notes = "".join(f"\n  {note}" for note in inputs.notes)
    page = os.path.join(arguments.output, PAGE_NAME)
    return f"{page}: {title[0].lower()}{title[1:]}, {len(pictures)} PNGs beside it{notes}"


def _wanted_ids(arguments: argparse.Namespace) -> list[str] | None:
    if arguments.image_ids is not None:
        ids = [image_id.strip() for image_id in arguments.image_ids.split(",") if image_id.strip()]
    elif arguments.ids is not None:
        ids = read_ids(arguments.ids)
    else:
        return None
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= _MAX_PICTURES:
        raise InspectionError(f"{len(ids)} image ids; a page shows 1 to {_MAX_PICTURES} images")
    return ids


def _read_inputs(arguments: argparse.Namespace, wanted: list[str] | None) -> _Inputs:
    """Reads predictions and ground truth and reduces both to the images that both know."""
    source, truth_path = arguments.predictions, arguments.groundtruth
    classes = read_class_file(arguments.classes) if arguments.classes else ()
    classes_from = arguments.classes or ""
    prepared: PreparedSet | None = None
    if truth_path and storage.is_folder(truth_path):
        prepared = read_prepared_set(truth_path)
        if classes:
            match_classes(classes, prepared.classes, classes_from, truth_path)
        classes, classes_from = prepared.classes, truth_path
    found = read_found(
        source,
        min_score=arguments.min_score,
        classes=classes,
        classes_from=classes_from,
        wanted=wanted,
        skip_bad=arguments.skip_bad,
    )
    truth: Truth | None = None
    if prepared is not None:
        truth = read_true_split(prepared, arguments.split)
    elif truth_path:
        truth = read_true_boxes(truth_path, found.classes, classes_from or source)
    _require_ids(wanted, found.objects, source)
    if truth is None:
        return _Inputs(found.objects, None, found.classes, found.notes)
    _require_ids(wanted, truth.objects, truth_path)
    return _joined(found, truth, source, truth_path, is_part=wanted is not None)


def _require_ids(wanted: list[str] | None, objects: Objects, path: str) -> None:
    known = set(objects.image_ids.tolist())
    if wanted is not None:
        unknown = [image_id for image_id in wanted if image_id not in known]
        if unknown:
            raise InspectionError(
                f"{len(unknown)} image ids are not in {path}: {name_some(unknown)}"
            )
    elif not known:
        raise InspectionError(f"{path} has no image")


def _joined(found: Found, truth: Truth, source: str, truth_path: str, *, is_part: bool) -> _Inputs:
    ids = np.intersect1d(found.objects.image_ids, truth.objects.image_ids)
    if not len(ids):
        raise InspectionError(
            f"no image is in both: {source} has {name_some(found.objects.image_ids[:3].tolist())}"
            f" …, {truth_path} has {name_some(truth.objects.image_ids[:3].tolist())} …"
        )
    notes = [*found.notes, *truth.notes]
    for path, objects, other in (
        (source, found.objects, truth_path),
        (truth_path, truth.objects, source),
    ):
        lacking = len(objects.image_ids) - len(ids)
        if lacking and not is_part:
            notes.append(f"{lacking:,} images of {path} are not in {other} and not compared")
    return _Inputs(
        take_images(found.objects, ids),
        take_images(truth.objects, ids),
        found.classes,
        tuple(notes),
    )


def _write(
    scene: Scene,
    rows: np.ndarray,
    arguments: argparse.Namespace,
    *,
    title: str,
    facts: dict[str, str],
    notes: Sequence[str],
) -> list[Picture]:
    ids = scene.found.image_ids[rows].tolist()
    files = {file.image_id: file for file in list_images(arguments.images, ids)}
    pictures = []
    with whole_folder(arguments.output) as folder:
        names = file_names(ids)
        for row, image_id, name in zip(rows.tolist(), tqdm(ids, unit="image"), names, strict=True):
            picture, png = draw_picture(
                scene,
                row,
                _read_image(files[image_id]),
                name,
                num_pictures=len(ids),
                max_bytes=_THUMBNAIL_BYTES // len(ids),
            )
            write_bytes(folder, name, png)
            pictures.append(picture)
        page = build_page(scene, pictures, title=title, facts=facts, notes=notes)
        write_bytes(folder, PAGE_NAME, page.encode())
    return pictures


def _read_image(file: ImageFile) -> np.ndarray:
    try:
        with storage.open_file(file.path, "rb") as stream:
            return decode_rgb(stream.read())
    except ImageError as error:
        raise InspectionError(f"{file.path} cannot be drawn: {error}") from error
