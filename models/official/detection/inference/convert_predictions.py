"""Writes a predictions file in the formats of other programs: COCO results, YOLO, CSV."""

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from tpudet.detection.inference.join_shards import describe_shard
from tpudet.detection.inference.predictions import (
    ImagePredictions,
    PredictionsError,
    StoredPredictions,
)
from tpudet.detection.inference.predictions_file import open_predictions
from tpudet.detection.inference.result_images import (
    category_ids,
    identities_of_coco,
    identities_of_files,
    own_identities,
)
from tpudet.detection.submission.results import (
    ImageIdentity,
    VisibleDetections,
    coco_entries,
    template_fields,
    visible_detections,
    yolo_class_names,
    yolo_class_numbers,
    yolo_lines,
)
from tpudet.detection.submission.row_template import RowTemplate, parse_template
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.claimed_folder import claimed_folder
from tpudet.trainkit.files.listed_files import is_plain_name

ResultFormat = Literal["coco", "yolo", "csv"]
_CLASS_NAMES = "classes.txt"
DEFAULT_TEMPLATE = "{image},{label},{score:.6f},{x1},{y1},{x2},{y2}"


class _Results(NamedTuple):
    stored: StoredPredictions
    identities: Mapping[str, ImageIdentity]
    classes: tuple[ClassEntry, ...]
    min_score: float

    def detections(self) -> Iterator[tuple[ImagePredictions, ImageIdentity, VisibleDetections]]:
        """Each image with its identity and the detections to write."""
        for block in self.stored.blocks():
            for image in block:
                found = visible_detections(
                    image.labels, image.scores, image.boxes_normalized, min_score=self.min_score
                )
                yield image, self.identities[image.image_id], found


def convert_predictions(
    source: str,
    target: str,
    *,
    to: ResultFormat,
    images: str | None,
    ground_truth: str | None,
    template: str | None,
    header: str | None,
    pixels: bool,
    min_score: float,
    no_scores: bool,
    force: bool,
) -> str:
    """Writes a predictions file in another format, whole or not at all.

    Args:
        source: path of the predictions file.
        target: the JSON or CSV to write; for YOLO a folder with a text file per image.
        to: the format.
        images: folder of the images, for their sizes.
        ground_truth: COCO instances JSON, for ids and sizes of images and ids of categories.
        template: of a CSV's rows, see `row_template`.
        header: first line of a CSV; None derives it from the template, "" writes none.
        pixels: whether boxes of a CSV are in pixels instead of fractions.
        min_score: detections with lower scores are left out, 0..1.
        no_scores: whether lines of YOLO end with the box, as those of annotations do.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        UserError: an argument is not usable, or does not suit the format.
    """
    if to != "csv" and (template is not None or header is not None or pixels):
        raise UserError("--format, --header and --coordinates pixels are for --to csv")
    if no_scores and to != "yolo":
        raise UserError("--no_scores is for --to yolo; a template of --to csv needs no {score}")
    text = DEFAULT_TEMPLATE if template is None else template
    needs_sizes = to == "coco" or pixels or "{width" in text or "{height" in text
    _check_sizes(images, ground_truth, are_needed=needs_sizes)
    _check_paths(source, target, to, force=force)
    rows = parse_template(text)  # refused before the predictions are read
    with storage.open_file(source, "rb") as file:
        stored = open_predictions(file, source)
        classes, ids = read_class_list(stored.class_list_text), stored.image_ids()
        identities = _identities(ids, images, ground_truth)
        results = _Results(stored, identities, classes, min_score)
        if to == "coco":
            count = _write_coco(target, results, category_ids(classes, ground_truth), force=force)
        elif to == "yolo":
            count = _write_yolo(target, results, with_scores=not no_scores, force=force)
        else:
            count = _write_csv(target, results, rows, header, pixels=pixels, force=force)
    unread = len(stored.metadata.get("unreadable") or ())
    note = f"; {unread} images could not be read when they were predicted" if unread else ""
    if shard := describe_shard(stored.metadata):
        note += f"; {shard} of the images, tpudet join_predicted_parts joins them"
    return f"{target}: {count} detections in {len(ids)} images{note}"


def _check_sizes(images: str | None, ground_truth: str | None, *, are_needed: bool) -> None:
    if images is not None and ground_truth is not None:
        raise UserError("--images and --ground_truth both state sizes: give one")
    if are_needed and images is None and ground_truth is None:
        raise UserError("pixels need the sizes of the images: give --images or --ground_truth")


def _check_paths(source: str, target: str, to: ResultFormat, *, force: bool) -> None:
    if not storage.is_file(source):
        raise UserError(f"no file {source}: PREDICTIONS is written by tpudet predict")
    if storage.exists(target) and (to == "yolo") != storage.is_folder(target):
        raise UserError(f"{target} is a {'file' if to == 'yolo' else 'folder'}")
    if storage.exists(target) and not force:
        raise UserError(f"{target} exists; -f replaces it")


def _identities(
    ids: Sequence[str], images: str | None, ground_truth: str | None
) -> Mapping[str, ImageIdentity]:
    if ground_truth is not None:
        return identities_of_coco(ground_truth, ids)
    return own_identities(ids) if images is None else identities_of_files(images, ids)


def _write_coco(target: str, results: _Results, categories: Sequence[int], *, force: bool) -> int:
    count = 0
    with claimed_file(target, "w", force=force) as file:
        for image, identity, found in results.detections():
            _check_frame(image, identity)
            for entry in coco_entries(found, identity, categories, image.masks):
                file.write(("[" if count == 0 else ",\n") + json.dumps(entry))
                count += 1
        file.write("]\n" if count else "[]\n")
    return count


def _check_frame(image: ImagePredictions, identity: ImageIdentity) -> None:
    """Raises if masks, which are of the upright image, do not have the size that is known of it."""
    size = [identity.height, identity.width]
    sizes = ([*mask["size"]] for mask in image.masks or ())
    other = next((found for found in sizes if found != size), None)
    if other is not None:
        raise PredictionsError(
            f"image {image.image_id} was predicted at {other[1]}x{other[0]} pixels, upright, and "
            f"--ground_truth or --images says {size[1]}x{size[0]}. Of a prepared set, tpudet "
            "export_annotations writes ground truth that fits"
        )


def _write_csv(
    target: str,
    results: _Results,
    rows: RowTemplate,
    header: str | None,
    *,
    pixels: bool,
    force: bool,
) -> int:
    count = 0
    with claimed_file(target, "w", force=force) as file:
        writer = csv.writer(file, lineterminator="\n")
        if header is None:
            writer.writerow(rows.header())
        elif header:
            file.write(f"{header}\n")
        for image, identity, found in results.detections():
            fields = template_fields(found, identity, results.classes, pixels=pixels)
            named = {"image": image.image_id, "width": identity.width, "height": identity.height}
            writer.writerows(rows.rows(named, fields))
            count += len(fields)
    return count


def _write_yolo(target: str, results: _Results, *, with_scores: bool, force: bool) -> int:
    """Writes `<image id>.txt` for each image, and the names of the classes in classes.txt."""
    wrong = [name for name in results.identities if not is_plain_name(name)]
    if wrong:
        raise PredictionsError(
            f"{len(wrong)} image ids cannot be names of files, as labels of YOLO have them: "
            f"{listing(map(ascii, wrong))}; rename the images and predict them again"
        )
    stem = os.path.splitext(_CLASS_NAMES)[0]
    if stem in results.identities:
        raise PredictionsError(
            f"the labels of the image {stem} would be {_CLASS_NAMES}, the file of the class names: "
            "rename the image and predict it again"
        )

    def check() -> None:
        names = storage.list_names(target)
        if names and not force:
            raise UserError(f"{target} exists: another process has written it meanwhile")
        foreign = [name for name in names if not name.endswith(".txt")]
        if foreign:
            raise PredictionsError(
                f"{target} has other files, such as {foreign[0]}; name a new folder"
            )
        if names and _CLASS_NAMES not in names:
            raise PredictionsError(
                f"{target} has text files, such as {names[0]}, but no {_CLASS_NAMES}, so this "
                "command has not written it: these may be annotations. Name a new folder"
            )

    count, numbers = 0, yolo_class_numbers(results.classes)
    with claimed_folder(target, last=_CLASS_NAMES, check=check) as folder:
        for image, _, found in results.detections():
            lines = yolo_lines(found, numbers, with_scores=with_scores)
            storage.write_text(os.path.join(folder, f"{image.image_id}.txt"), lines)
            count += len(found.rows)
        names = yolo_class_names(results.classes)
        storage.write_text(os.path.join(folder, _CLASS_NAMES), names)
    return count
