"""Pseudo-labels: adds the confident predictions of a submission to a box CSV."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from tqdm import tqdm

from tpudet.detection.ops.numpy_boxes import iou_matrix
from tpudet.detection.preparation.open_images.challenge import STEP_CODE
from tpudet.detection.preparation.open_images.confident_predictions import (
    read_confident,
    read_thresholds,
)
from tpudet.detection.preparation.sources.annotations import (
    COORDINATES,
    Finding,
    require_fractions,
)
from tpudet.detection.preparation.sources.box_csv import (
    CORNER_COLUMNS,
    PROGRESS_DELAY,
    read_boxes,
    stream_boxes,
    write_boxes,
)
from tpudet.detection.preparation.sources.checks import check_boxes
from tpudet.detection.preparation.sources.input_files import stem
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_classes
from tpudet.trainkit.jobs.steps import Step

SOURCE = "pseudolabels"
_FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
_BOX_COLUMNS = ("ImageID", "LabelName", *CORNER_COLUMNS.values())
_CLASSES_SHOWN = 10

# What a prediction duplicates.
DISTINCT, OF_EXISTING, OF_PREDICTION = 0, 1, 2


def find_duplicates(found: pd.DataFrame, existing: pd.DataFrame, *, max_iou: float) -> np.ndarray:
    """Finds the predictions that duplicate another box of the same image and label.

    Predictions are visited by descending score. One is a duplicate if its intersection over union
    with an existing box, or with a prediction kept so far, is above `max_iou`.

    Args:
        found: image, label, score, y1 x1 y2 x2 of the predictions.
        existing: image, label, y1 x1 y2 x2 of the existing boxes.
        max_iou: in 0..1; 1 keeps all.

    Returns:
        [predictions] DISTINCT, OF_EXISTING or OF_PREDICTION: what each one duplicates.
    """
    duplicates = np.full(len(found), DISTINCT)
    keys = ["image", "label"]
    both = pd.concat([found[keys], existing[keys]], ignore_index=True)
    groups = both.groupby(keys, sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(-found["score"].to_numpy(), kind="stable")
    members = [*order, *range(len(found), len(both))]  # predictions come first, by descending score
    corners = np.concatenate([table[list(COORDINATES)].to_numpy() for table in (found, existing)])
    rows_by_group: dict[int, list[int]] = {}
    for row in map(int, members):
        rows_by_group.setdefault(groups[row], []).append(row)
    for rows in tqdm(rows_by_group.values(), desc="comparing", unit="group", delay=PROGRESS_DELAY):
        if len(rows) > 1:
            predicted = [row for row in rows if row < len(found)]
            others = corners[rows[len(predicted) :]]
            duplicates[predicted] = _duplicates_in_group(corners[predicted], others, max_iou)
    return duplicates


def _duplicates_in_group(found: np.ndarray, existing: np.ndarray, max_iou: float) -> np.ndarray:
    """As `find_duplicates`, [n], for boxes [n, 4] by descending score and existing ones [m, 4]."""
    duplicates = np.full(len(found), DISTINCT)
    duplicates[(iou_matrix(found, existing) > max_iou).any(axis=1)] = OF_EXISTING
    overlaps = iou_matrix(found, found) > max_iou
    for row in range(len(found)):
        if duplicates[row] == DISTINCT:
            later = np.flatnonzero(overlaps[row, row + 1 :]) + row + 1
            duplicates[later[duplicates[later] == DISTINCT]] = OF_PREDICTION
    return duplicates


def add_pseudo_labels(
    output: str,
    source: str,
    predictions: str,
    *,
    min_conf: float = 0.9,
    classes: str | None = None,
    class_thresholds: str | None = None,
    max_iou: float = 0.5,
) -> str:
    """Writes the boxes of a CSV unchanged, followed by the confident predictions.

    Args:
        output: the box CSV to write, with the columns of `source`.
        source: a box CSV.
        predictions: a submission, `ImageId,PredictionString`.
        min_conf: only scores above it are taken.
        classes: a class list; predictions of other classes are left out.
        class_thresholds: a CSV, one `identifier or name,threshold` per line, that replaces
            `min_conf` for the classes that it names.
        max_iou: as for `find_duplicates`.

    Returns:
        A summary of what was added and left out.

    Raises:
        UserError: a file cannot be read or has another format, or the submission is in pixels.
    """
    entries = read_classes(classes) if classes else None
    thresholds = read_thresholds(class_thresholds, entries) if class_thresholds else {}
    found, counts = read_confident(
        predictions, min_conf=min_conf, classes=entries, thresholds=thresholds
    )
    # Clipped to the image, a box in pixels would be the whole image.
    require_fractions(found, f"PREDICTIONS {predictions}", has_formats=False)
    existing = _read_existing(source, set(found["image"]))
    found, findings = _check(found)
    canonical = _canonical_labels(entries)
    duplicates = find_duplicates(
        *(table.assign(label=table["label"].map(canonical)) for table in (found, existing)),
        max_iou=max_iou,
    )
    added = found[duplicates == DISTINCT]
    write_boxes(output, _with_added(source, added))
    counts.update(finding.reason for finding in findings if not finding.repaired)
    counts[f"with IoU above {max_iou:g} with a box of BOXES"] = sum(duplicates == OF_EXISTING)
    counts[f"with IoU above {max_iou:g} with a more confident one"] = sum(
        duplicates == OF_PREDICTION
    )
    repairs = Counter(finding.reason for finding in findings if finding.repaired)
    per_class = added["label"].value_counts()
    shown = [f"{count} {label}" for label, count in per_class.head(_CLASSES_SHOWN).items()]
    shown += ["..."] * (len(per_class) > _CLASSES_SHOWN)
    return (
        f"{len(added)} boxes added in {added['image'].nunique()} images: "
        f"{', '.join(shown) or 'none'}. Left out: {_list_counts(counts)}. "
        f"Repaired: {_list_counts(repairs)}."
    )


def _list_counts(counts: Counter[str]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in counts.items() if count) or "nothing"


def _check(found: pd.DataFrame) -> tuple[pd.DataFrame, list[Finding]]:
    """Returns the boxes clipped to the images with ordered corners, and the findings."""
    codes, images = pd.factorize(found["image"])
    boxes = found.assign(image=codes, label=found["label"].astype("category"), is_crowd=False)
    checked = check_boxes(boxes, pd.Series(images, dtype="str"), np.ones((len(images), 2)))
    names = np.asarray(images)[checked.boxes["image"].to_numpy()]
    boxes = checked.boxes.assign(image=names, label=checked.boxes["label"].astype("str"))
    return boxes.reset_index(drop=True), checked.findings


def _read_existing(source: str, images: set[str]) -> pd.DataFrame:
    """Reads the boxes of the images that have predictions: image, label, y1 x1 y2 x2."""
    table = read_boxes(source, "BOXES", columns=_BOX_COLUMNS)
    names = {stem(image): image for image in images}
    wanted = [stem(name) in names for name in table["ImageID"].cat.categories]
    table = table[np.array(wanted)[table["ImageID"].cat.codes.to_numpy()]]
    return pd.DataFrame(
        {
            "image": [names[stem(name)] for name in table["ImageID"]],
            "label": table["LabelName"].astype("str").tolist(),
            **{key: table[column].to_numpy() for key, column in CORNER_COLUMNS.items()},
        }
    )


def _canonical_labels(classes: Sequence[ClassEntry] | None) -> Callable[[str], str]:
    """Returns a function that maps the name and the identifier of a class to one key."""
    ids = class_ids(classes or ())
    return lambda label: str(ids.get(label, label))


def _with_added(source: str, added: pd.DataFrame) -> Iterator[pa.RecordBatch | pa.Table]:
    names: list[str] = []
    for batch in stream_boxes(source, "BOXES", required=_BOX_COLUMNS):
        names = batch.schema.names
        yield batch
    values: dict[str, Any] = {
        "ImageID": added["image"].tolist(),
        "LabelName": added["label"].tolist(),
        "Source": [SOURCE] * len(added),
        "Confidence": ["1"] * len(added),
        **{column: added[key].to_numpy() for key, column in CORNER_COLUMNS.items()},
        **{flag: ["0"] * len(added) for flag in _FLAGS},
    }
    yield pa.table({name: values.get(name, [""] * len(added)) for name in names})


def pseudo_labels_step(
    output: str,
    source: str,
    predictions: str,
    *,
    min_conf: float = 0.9,
    classes: str | None = None,
    class_thresholds: str | None = None,
    max_iou: float = 0.5,
) -> Step:
    """Returns the step that runs `add_pseudo_labels`."""
    files = {"classes": classes, "class_thresholds": class_thresholds}
    given = [path for path in files.values() if path]
    options = {name: path is not None for name, path in files.items()}
    return Step(
        name=f"Add pseudo-labels to {os.path.basename(source)}",
        inputs=(source, predictions, *given),
        options=options | {"min_conf": min_conf, "max_iou": max_iou},
        outputs=(output,),
        run=lambda: add_pseudo_labels(
            output,
            source,
            predictions,
            min_conf=min_conf,
            classes=classes,
            class_thresholds=class_thresholds,
            max_iou=max_iou,
        ),
        code=STEP_CODE,
    )
