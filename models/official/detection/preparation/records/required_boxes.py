"""Refuses sets without images, and sets that lose boxes that a user would miss."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpudet.detection.preparation.records.plan import Plan
from tpudet.detection.preparation.sources.annotation_values import as_integers
from tpudet.detection.preparation.sources.annotations import UNLISTED_IMAGE, Annotations
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.trainkit.errors import UserError, listing


def require_images(manifest: Mapping[str, Any]) -> None:
    """Raises UserError if a set has no image."""
    if not manifest["images"]:
        raise UserError(
            f"No image can be used, nothing was written. Left out: {_reasons(manifest)}."
        )


def require_boxes(plan: Plan, manifest: Mapping[str, Any], advice: str) -> None:
    """Raises if a set lost all its boxes, or all boxes of a class: mostly a fault of reading.

    Without a class list, which may choose some classes, a label that is none of the annotations'
    own classes is one that lost all its boxes. A split to train on has boxes.

    Args:
        plan: the set.
        manifest: that it gets.
        advice: a sentence on what to do.

    Raises:
        UserError: names the classes and the reasons.
    """
    annotations = plan.annotations
    is_own = np.isin(annotations.boxes["image"], np.unique(plan.order))
    labels = annotations.boxes["label"][is_own]
    annotated = np.bincount(
        label_class_ids(labels, annotations.class_ids()), minlength=len(annotations.classes) + 1
    )
    lost, hint = [], ""
    if plan.options.get("classes") is None:
        lost, hint = _foreign_labels(annotations, is_own)
    unlisted = sum(finding.reason == UNLISTED_IMAGE for finding in annotations.findings)
    lost += [
        f"{entry.name} ({count})"
        for entry, count in zip(annotations.classes, annotated[1:].tolist(), strict=True)
        if count and not manifest["boxes_per_class"][entry.name]
    ]
    name = f"{plan.split}_{plan.part}"
    if len(labels) + unlisted and not manifest["boxes"]:
        what = f"all {len(labels) + unlisted} boxes"
    elif lost:
        what = f"all boxes of {listing(lost)}"
    elif plan.split == "train" and not manifest["boxes"]:
        raise UserError(f"{name} would have no box, so that nothing can be learned. {advice}")
    else:
        return
    raise UserError(f"{name} would lose {what}. Left out: {_reasons(manifest)}.{hint} {advice}")


def _foreign_labels(annotations: Annotations, is_own: np.ndarray) -> tuple[list[str], str]:
    """Returns the labels that are no class, each with its count, and a hint where all are one off.

    Args:
        annotations: all boxes, from which it is seen whether they are.
        is_own: [boxes] bool, those of the set.
    """
    known = annotations.class_ids()
    labels = annotations.boxes["label"].astype("category")
    is_read = annotations.boxes["fault"].isna() if "fault" in annotations.boxes else True
    counts = labels[is_own & is_read].value_counts().sort_index()
    unknown = [
        f"'{label}', which is no class ({count})"
        for label, count in counts.items()
        if count and label and label not in known
    ]
    numbers = as_integers([*map(str, labels[(labels != "") & is_read].unique())])
    for shift, change in ((1, "higher"), (-1, "lower")):
        if unknown and numbers and all(str(number - shift) in known for number in numbers):
            first = annotations.classes[0]
            return unknown, (
                f" All class numbers are one {change} than those of the classes, which begin with "
                f"{first.identifier} for {first.name}."
            )
    return unknown, ""


def _reasons(manifest: Mapping[str, Any]) -> str:
    """Lists why images and boxes are left out, with the count and the first case of each reason."""
    first: dict[str, str] = {}
    for entry in manifest["left_out"]:
        case = ": ".join(filter(None, (entry["file"], entry.get("detail"))))
        first.setdefault(entry["reason"], case)
    counts = manifest["left_out_counts"].items()
    return "; ".join(f"{count} {reason} (such as {first[reason]})" for reason, count in counts)
