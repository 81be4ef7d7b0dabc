"""Writes a split of a prepared set as COCO ground truth, an instances JSON."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tpudet.detection.evaluation.ground_truth import GroundTruth, ignored_as_mask, load_ground_truth
from tpudet.detection.ops.numpy_boxes import boxes_to_xywh
from tpudet.detection.preparation.records.prepared_set import read_prepared_set
from tpudet.detection.preparation.sources.annotation_values import as_integers
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file
from tpudet.trainkit.input_errors import check_of_pipeline

_DECIMALS = 3  # of pixels; records hold float32 fractions


def export_annotations(
    directory: str, target: str, *, split: str, include_masks: bool, force: bool
) -> str:
    """Writes the images and objects of a split, as they are in its records.

    Image ids are the ids of the source if these are numbers, else they count from 1. Category ids
    are the identifiers of the classes if these are numbers, else class ids. Copies of an image,
    which a balanced split has, are written once.

    Args:
        directory: converted/PART.
        target: the JSON to write.
        split: its name.
        include_masks: write segmentations, as run lengths.
        force: whether an existing target is replaced.

    Returns:
        The summary.

    Raises:
        UserError: the set or the split is not usable, or the target exists.
    """
    if is_file(target) and not force:
        raise UserError(f"{target} exists; -f replaces it")
    prepared = read_prepared_set(directory)
    found = next((one for one in prepared.splits if one.name == split), None)
    if found is None:
        names = ", ".join(one.name for one in prepared.splits)
        raise UserError(f"{directory} has no split {split}; --split is {names}")
    names = [entry.name for entry in prepared.classes]
    try:
        truth = load_ground_truth(found.shards, names, with_masks=include_masks)
    except (ValueError, tf.errors.OpError) as error:  # a record that is damaged, or none
        said = check_of_pipeline(error) or str(error)
        raise UserError(f"{found.manifest_path}: {said}") from error
    _require_finite(truth, found.manifest_path)
    file_names = [
        name or source for name, source in zip(truth.file_names, truth.source_ids, strict=True)
    ]
    content = coco_content(truth, file_names, prepared.classes)
    with claimed_file(target, "w", force=force) as file:
        file.write(json.dumps(content, ensure_ascii=False) + "\n")
    counts = {section: len(entries) for section, entries in content.items()}
    return (
        f"{target}: {counts['images']} images, {counts['annotations']} objects, "
        f"{counts['categories']} classes"
    )


def _require_finite(truth: GroundTruth, manifest_path: str) -> None:
    numbers = np.column_stack([truth.boxes, truth.areas])
    unusable = truth.image_indices[~np.isfinite(numbers).all(axis=1)]
    if len(unusable):
        raise UserError(
            f"{manifest_path}: {len(unusable)} boxes have a corner or an area that is NaN or "
            f"infinite, first in the image {truth.source_ids[unusable[0]]}. Write the set again "
            "with --overwrite."
        )


def coco_content(
    truth: GroundTruth, file_names: Sequence[str], classes: Sequence[ClassEntry]
) -> dict[str, list[dict[str, Any]]]:
    """Returns the content of an instances JSON.

    Args:
        truth: of I images.
        file_names: I names.
        classes: C classes.
    """
    first = {name: row for row, name in reversed(list(enumerate(file_names)))}
    rows = sorted(first.values())
    numbers = as_integers([truth.source_ids[row] for row in rows]) or []
    if len(set(numbers)) < len(rows):
        numbers = list(range(1, len(rows) + 1))
    image_ids = dict(zip(rows, numbers, strict=True))
    images = [
        {
            "id": image_ids[row],
            "file_name": file_names[row],
            "height": int(truth.sizes[row][0]),
            "width": int(truth.sizes[row][1]),
        }
        for row in rows
    ]
    category_ids = as_integers([entry.identifier for entry in classes])
    category_ids = category_ids or list(range(1, len(classes) + 1))
    categories = [
        {"id": number, "name": entry.name}
        for number, entry in zip(category_ids, classes, strict=True)
    ]
    return {
        "images": images,
        "annotations": _annotations(truth, image_ids, category_ids),
        "categories": categories,
    }


def _annotations(
    truth: GroundTruth, image_ids: dict[int, int], category_ids: Sequence[int]
) -> list[dict[str, Any]]:
    boxes_xywh = boxes_to_xywh(np.round(truth.boxes.astype(np.float64), _DECIMALS))
    is_crowd = truth.is_crowd if truth.masks is None else ignored_as_mask(truth)
    entries = []
    for row, image in enumerate(truth.image_indices.tolist()):
        if image not in image_ids:
            continue
        entry = {
            "id": len(entries) + 1,  # evaluators take 0 for no match
            "image_id": image_ids[image],
            "category_id": category_ids[int(truth.classes[row]) - 1],
            "bbox": boxes_xywh[row].round(_DECIMALS).tolist(),
            "area": round(float(truth.areas[row]), _DECIMALS),
            "iscrowd": int(is_crowd[row]),
        }
        if truth.masks is not None:
            entry["segmentation"] = truth.masks[row]
        entries.append(entry)
    return entries
