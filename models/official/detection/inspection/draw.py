"""Draws predictions beside their ground truth into PNGs and one HTML page."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.inspection.ground_truth_objects import (
    GroundTruthObjects,
    read_box_csv_objects,
    read_split_objects,
)
from tpudet.detection.inspection.image_panels import (
    Comparison,
    ImageCard,
    draw_image,
    file_names,
)
from tpudet.detection.inspection.objects import (
    InspectionError,
    Objects,
    class_permutation,
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
from tpudet.detection.inspection.predicted_objects import (
    PredictedObjects,
    is_submission,
    read_predicted_objects,
)
from tpudet.detection.preparation.records.prepared_set import PreparedSet, read_prepared_set
from tpudet.trainkit.class_list import ClassEntry, read_classes
from tpudet.trainkit.errors import listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import open_bytes
from tpudet.trainkit.image_folder import ImageFile, list_images, read_ids
from tpudet.trainkit.images.standardize import ImageError, decode_rgb

MAX_IMAGES = 500
_DEFAULT_IMAGES = 24
_THUMBNAIL_BYTES = 2_600_000  # of all together; base64 makes 3.5 MB of them in the page


class _Inputs(NamedTuple):
    predicted: Objects
    ground_truth: Objects | None
    classes: tuple[ClassEntry, ...]
    notes: tuple[str, ...]


class ImageChoice(NamedTuple):
    """The images to draw, by one of four rules.

    By default these are the worst, or without ground truth some evenly over all.
    """

    worst: int | None = None  # number of the worst images
    num: int | None = None  # number of images evenly over all, by id
    image_ids: str | None = None  # these, separated by commas
    ids: str | None = None  # those of a list, by its path


def draw_predictions(
    predictions: str,
    *,
    images: str,
    output: str,
    groundtruth: str | None,
    split: str,
    classes: str | None,
    min_score: float,
    skip_bad: bool,
    choice: ImageChoice,
    force: bool,
) -> str:
    """Draws predictions, beside the ground truth if it is given.

    Args:
        predictions: path of a predictions file, or of a submission (.csv).
        images: folder of images.
        output: folder to make.
        groundtruth: a folder converted/PART, or a box CSV; None for none.
        split: of the folder.
        classes: path of a class list, for a submission.
        min_score: predictions with a lower score are left out, 0..1.
        skip_bad: whether bad rows of a submission are left out and counted.
        choice: which images.
        force: whether an existing output is replaced.

    Returns:
        The summary.

    Raises:
        UserError: an argument or input is not usable; nothing is written then.
    """
    _check_arguments(predictions, groundtruth, choice)
    check_output(output, force=force)
    wanted = _wanted_ids(choice)
    inputs = _read_inputs(
        predictions,
        groundtruth,
        split=split,
        classes_path=classes,
        min_score=min_score,
        skip_bad=skip_bad,
        wanted=wanted,
    )
    comparison = _compare(inputs, min_score)
    rows, title = _choose_images(comparison, wanted, choice)
    if not len(rows):
        count = len(inputs.predicted.image_ids)
        return f"all {count:,} images are free of faults: nothing is drawn"
    facts = {"Predictions": predictions, "Ground truth": groundtruth or "none", "Images": images}
    facts["Lowest score"] = f"{min_score:g}"
    cards = _write(
        comparison, rows, images, output, title=title, facts=facts, notes=inputs.notes, force=force
    )
    notes = "".join(f"\n  {note}" for note in inputs.notes)
    page = os.path.join(output, PAGE_NAME)
    return f"{page}: {title[0].lower()}{title[1:]}, {len(cards)} PNGs beside it{notes}"


def _check_arguments(predictions: str, groundtruth: str | None, choice: ImageChoice) -> None:
    if choice.worst and not groundtruth:
        raise InspectionError("--worst needs --groundtruth, by which faults are found")
    for path, what in (
        (predictions, "PREDICTIONS is written by tpudet predict or tpudet gen_sub"),
        (groundtruth, "--groundtruth is a folder converted/PART or a box CSV"),
    ):
        if path and not storage.exists(path):
            raise InspectionError(f"no file {path}: {what}")
    wanted = choice.worst or choice.num or 0
    if wanted > MAX_IMAGES:
        raise InspectionError(f"{wanted} images; a page shows at most {MAX_IMAGES}")


def _compare(inputs: _Inputs, min_score: float) -> Comparison:
    outcomes = None
    if inputs.ground_truth is not None:
        outcomes = find_outcomes(inputs.predicted, inputs.ground_truth, len(inputs.classes))
    return Comparison(inputs.predicted, inputs.ground_truth, outcomes, inputs.classes, min_score)


def _wanted_ids(choice: ImageChoice) -> list[str] | None:
    if choice.image_ids is not None:
        ids = [part.strip() for part in choice.image_ids.split(",") if part.strip()]
    elif choice.ids is not None:
        ids = read_ids(choice.ids)
    else:
        return None
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= MAX_IMAGES:
        raise InspectionError(f"{len(ids)} image ids; a page shows 1 to {MAX_IMAGES} images")
    return ids


def _choose_images(
    comparison: Comparison, wanted: list[str] | None, choice: ImageChoice
) -> tuple[np.ndarray, str]:
    """Rows of the images to draw, and the title of the page."""
    image_ids = comparison.predicted.image_ids
    count = len(image_ids)
    if wanted is not None:
        return np.searchsorted(image_ids, wanted), f"{len(wanted)} chosen images"
    if comparison.outcomes is not None and not choice.num:
        rows = rank_worst(comparison.outcomes, choice.worst or _DEFAULT_IMAGES)
        return rows, f"The {len(rows)} worst of {count:,} images"
    num = min(choice.num or _DEFAULT_IMAGES, count)
    return np.arange(num) * count // num, f"{num} of {count:,} images"


def _read_inputs(
    source: str,
    truth_path: str | None,
    *,
    split: str,
    classes_path: str | None,
    min_score: float,
    skip_bad: bool,
    wanted: list[str] | None,
) -> _Inputs:
    """Reads predictions and ground truth and reduces both to the images that both have."""
    classes = read_classes(classes_path) if classes_path else ()
    classes_from = classes_path or ""
    prepared: PreparedSet | None = None
    if truth_path and storage.is_folder(truth_path):
        prepared = read_prepared_set(truth_path)
        if classes:
            rows = class_permutation(classes, prepared.classes, classes_from, truth_path)
            if is_submission(source):
                _require_identifiers(classes, prepared, rows, classes_from)
        classes, classes_from = prepared.classes, truth_path
    predicted = read_predicted_objects(
        source,
        min_score=min_score,
        classes=classes,
        classes_from=classes_from,
        wanted=wanted,
        skip_bad=skip_bad,
    )
    truth: GroundTruthObjects | None = None
    if prepared is not None:
        truth = read_split_objects(prepared, split)
    elif truth_path:
        truth = read_box_csv_objects(truth_path, predicted.classes, classes_from or source)
    _require_ids(wanted, predicted.objects, source)
    if truth is None or truth_path is None:
        return _Inputs(predicted.objects, None, predicted.classes, predicted.notes)
    _require_ids(wanted, truth.objects, truth_path)
    return _joined(predicted, truth, source, truth_path, is_part=wanted is not None)


def _require_identifiers(
    classes: Sequence[ClassEntry], prepared: PreparedSet, rows: np.ndarray, classes_from: str
) -> None:
    """Raises if a class of a submission, which has no names, has another identifier in the part."""
    pairs = zip(classes, (prepared.classes[row - 1] for row in rows[1:]), strict=True)
    differing = [f"{a.name} is {a.identifier} and {b.identifier}" for a, b in pairs if a[0] != b[0]]
    if differing:
        raise InspectionError(
            f"{classes_from} and {prepared.directory} have other identifiers for the same classes, "
            f"so the labels of a submission are not clear: {listing(differing)}"
        )


def _require_ids(wanted: list[str] | None, objects: Objects, path: str) -> None:
    known = set(objects.image_ids.tolist())
    if wanted is not None:
        unknown = [image_id for image_id in wanted if image_id not in known]
        if unknown:
            raise InspectionError(f"{len(unknown)} image ids are not in {path}: {listing(unknown)}")
    elif not known:
        raise InspectionError(f"{path} has no image")


def _joined(
    predicted: PredictedObjects,
    truth: GroundTruthObjects,
    source: str,
    truth_path: str,
    *,
    is_part: bool,
) -> _Inputs:
    ids = np.intersect1d(predicted.objects.image_ids, truth.objects.image_ids)
    if not len(ids):
        raise InspectionError(
            f"no image is in both: {source} has {listing(predicted.objects.image_ids[:3].tolist())}"
            f" …, {truth_path} has {listing(truth.objects.image_ids[:3].tolist())} …"
        )
    notes = [*predicted.notes, *truth.notes]
    for path, objects, other in (
        (source, predicted.objects, truth_path),
        (truth_path, truth.objects, source),
    ):
        lacking = len(objects.image_ids) - len(ids)
        if lacking and not is_part:
            notes.append(f"{lacking:,} images of {path} are not in {other} and not compared")
    return _Inputs(
        take_images(predicted.objects, ids),
        take_images(truth.objects, ids),
        predicted.classes,
        tuple(notes),
    )


def _write(
    comparison: Comparison,
    rows: np.ndarray,
    images: str,
    output: str,
    *,
    title: str,
    facts: dict[str, str],
    notes: Sequence[str],
    force: bool,
) -> list[ImageCard]:
    ids = comparison.predicted.image_ids[rows].tolist()
    files = {file.image_id: file for file in list_images(images, ids)}
    cards = []
    with whole_folder(output, force=force) as folder:
        names = file_names(ids)
        for row, image_id, name in zip(rows.tolist(), tqdm(ids, unit="image"), names, strict=True):
            card, png = draw_image(
                comparison,
                row,
                _read_image(files[image_id]),
                name,
                num_images=len(ids),
                max_bytes=_THUMBNAIL_BYTES // len(ids),
            )
            write_bytes(folder, name, png)
            cards.append(card)
        page = build_page(comparison, cards, title=title, facts=facts, notes=notes)
        write_bytes(folder, PAGE_NAME, page.encode())
    return cards


def _read_image(file: ImageFile) -> np.ndarray:
    try:
        with open_bytes(file.path) as stream:
            return decode_rgb(stream.read())
    except ImageError as error:
        raise InspectionError(f"{file.path} cannot be drawn: {error}") from error
