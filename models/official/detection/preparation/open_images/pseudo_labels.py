"""Pseudo-labels: confident predictions of a submission become boxes to train on."""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from tqdm import tqdm

from tpudet.detection.preparation.open_images.confident_predictions import (
    read_confident,
    read_thresholds,
)
from tpudet.detection.preparation.open_images.default_paths import storage_path
from tpudet.detection.preparation.sources.annotations import COORDINATES, Finding
from tpudet.detection.preparation.sources.box_csv import (
    PROGRESS_DELAY,
    read_boxes,
    stream_boxes,
    write_boxes,
)
from tpudet.detection.preparation.sources.checks import check_boxes
from tpudet.detection.preparation.sources.input_files import read_classes, stem
from tpudet.trainkit.class_list import ClassEntry, class_ids
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.jobs.steps import Step, run_step

# What a prediction repeats.
DISTINCT, OF_EXISTING, OF_PREDICTION = 0, 1, 2


def distinct_boxes(found: pd.DataFrame, existing: pd.DataFrame, *, max_iou: float) -> np.ndarray:
    """Finds the predictions that repeat another box of the same image and label.

    The surer prediction comes first; one counts as a repetition where its intersection over union
    with an existing box, or with a prediction that is kept, is above `max_iou`.

    Args:
        found: image, label, score, y1 x1 y2 x2 of the predictions.
        existing: image, label, y1 x1 y2 x2 of the boxes that are there.
        max_iou: in 0..1; 1 keeps all.

    Returns:
        [predictions] DISTINCT, OF_EXISTING or OF_PREDICTION: what it repeats.
    """
    repeats = np.full(len(found), DISTINCT)
    keys = ["image", "label"]
    both = pd.concat([found[keys], existing[keys]], ignore_index=True)
    groups = both.groupby(keys, sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(-found["score"].to_numpy(), kind="stable")
    members = [*order, *range(len(found), len(both))]  # predictions by falling score come first
    corners = np.concatenate([table[list(COORDINATES)].to_numpy() for table in (found, existing)])
    of_group: dict[int, list[int]] = {}
    for row in map(int, members):
        of_group.setdefault(groups[row], []).append(row)
    for rows in tqdm(of_group.values(), desc="comparing", unit="group", delay=PROGRESS_DELAY):
        if len(rows) > 1:
            predicted = [row for row in rows if row < len(found)]
            others = corners[rows[len(predicted) :]]
            repeats[predicted] = _repeats_in_group(corners[predicted], others, max_iou)
    return repeats


def _repeats_in_group(found: np.ndarray, existing: np.ndarray, max_iou: float) -> np.ndarray:
    """For boxes by falling score, [n, 4], and existing ones, [m, 4]: what each repeats, [n]."""
    repeats = np.full(len(found), DISTINCT)
    repeats[(_iou(found, existing) > max_iou).any(axis=1)] = OF_EXISTING
    overlaps = _iou(found, found) > max_iou
    for row in range(len(found)):
        if repeats[row] == DISTINCT:
            later = np.flatnonzero(overlaps[row, row + 1 :]) + row + 1
            repeats[later[repeats[later] == DISTINCT]] = OF_PREDICTION
    return repeats


def _iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union [m, n] of boxes [m, 4] and [n, 4]; NaN where either is not finite."""
    starts = np.maximum(first[:, None, :2], second[None, :, :2])
    ends = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(ends - starts, 0, None).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None, :] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


SOURCE = "pseudolabels"
_EXAMPLE = """example:
  scripts/add_pseudo_labels.py train_more.csv train.csv submission.csv --min_conf 0.95

exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written)
"""
_FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
_CORNER_COLUMNS = {"y1": "YMin", "x1": "XMin", "y2": "YMax", "x2": "XMax"}
_BOX_COLUMNS = ("ImageID", "LabelName", *_CORNER_COLUMNS.values())
_SHOWN = 10  # classes


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
    """Writes the boxes of a CSV as they are, and after them the confident predictions.

    Args:
        output: the box CSV to write, with the columns of `source`.
        source: a box CSV.
        predictions: a submission, `ImageId,PredictionString`.
        min_conf: scores above it are taken, equal ones are not.
        classes: a class list; predictions of other classes are left out.
        class_thresholds: a CSV, `identifier or name,threshold` a line, in place of `min_conf` for
            the classes that it names.
        max_iou: as `distinct_boxes`.

    Returns:
        What was taken and left out, in words.

    Raises:
        PreparationError: a file cannot be read, or is not what it should be.
    """
    entries = read_classes(classes) if classes else None
    thresholds = read_thresholds(class_thresholds, entries) if class_thresholds else {}
    found, counts = read_confident(
        predictions, min_conf=min_conf, classes=entries, thresholds=thresholds
    )
    existing = _read_existing(source, set(found["image"]))
    found, findings = _check(found)
    label_of = _canonical_labels(entries)
    repeats = distinct_boxes(
        *(table.assign(label=table["label"].map(label_of)) for table in (found, existing)),
        max_iou=max_iou,
    )
    added = found[repeats == DISTINCT]
    write_boxes(output, _with_added(source, added))
    counts.update(finding.reason for finding in findings if not finding.repaired)
    counts[f"overlapping a box of BOXES by more than {max_iou:g}"] = sum(repeats == OF_EXISTING)
    counts[f"overlapping a surer one by more than {max_iou:g}"] = sum(repeats == OF_PREDICTION)
    repairs = Counter(finding.reason for finding in findings if finding.repaired)
    per_class = added["label"].value_counts()
    shown = [f"{count} {label}" for label, count in per_class.head(_SHOWN).items()]
    shown += ["..."] * (len(per_class) > _SHOWN)
    return (
        f"{len(added)} boxes added in {added['image'].nunique()} images: "
        f"{', '.join(shown) or 'none'}. Left out: {_in_words(counts)}. "
        f"Repaired: {_in_words(repairs)}."
    )


def _in_words(counts: Counter[str]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in counts.items() if count) or "nothing"


def _check(found: pd.DataFrame) -> tuple[pd.DataFrame, list[Finding]]:
    """The boxes within the pictures, corners in order, and what had to be done for that."""
    codes, images = pd.factorize(found["image"])
    boxes = found.assign(image=codes, label=found["label"].astype("category"), is_crowd=False)
    checked = check_boxes(boxes, pd.Series(images, dtype="str"), np.ones((len(images), 2)))
    names = np.asarray(images)[checked.boxes["image"].to_numpy()]
    boxes = checked.boxes.assign(image=names, label=checked.boxes["label"].astype("str"))
    return boxes.reset_index(drop=True), checked.findings


def _read_existing(source: str, images: set[str]) -> pd.DataFrame:
    """The boxes of the images that have predictions: image, label, y1 x1 y2 x2."""
    table = read_boxes(source, "BOXES", columns=_BOX_COLUMNS)
    names = {stem(image): image for image in images}
    wanted = [stem(name) in names for name in table["ImageID"].cat.categories]
    table = table[np.array(wanted)[table["ImageID"].cat.codes.to_numpy()]]
    return pd.DataFrame(
        {
            "image": [names[stem(name)] for name in table["ImageID"]],
            "label": table["LabelName"].astype("str").tolist(),
            **{key: table[column].to_numpy() for key, column in _CORNER_COLUMNS.items()},
        }
    )


def _canonical_labels(classes: Sequence[ClassEntry] | None) -> Callable[[str], str]:
    """Makes the name and the identifier of a class the same, where classes are given."""
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
        **{column: added[key].to_numpy() for key, column in _CORNER_COLUMNS.items()},
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
    """The step of `add_pseudo_labels`."""
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
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="add_pseudo_labels.py",
        description="Add the confident predictions of a submission to a box CSV.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, text in (
        ("output", "train_pseudo_labels.csv", "box CSV to write"),
        ("boxes", "train_no_groups.csv", "box CSV, copied as it is"),
        ("predictions", "best_submission.csv", "submission, ImageId,PredictionString"),
    ):
        parser.add_argument(
            name,
            metavar=name.upper(),
            nargs="?",
            default=storage_path("prepared", default),
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--min_conf",
        type=_fraction,
        default=0.9,
        metavar="X",
        help="scores above it are taken (default: %(default)s)",
    )
    parser.add_argument("--classes", metavar="FILE", help="take predictions of these classes only")
    parser.add_argument(
        "--class_thresholds", metavar="FILE", help="`class,threshold` a line, before --min_conf"
    )
    parser.add_argument(
        "--max_iou",
        type=_fraction,
        default=0.5,
        metavar="X",
        help="a prediction that overlaps a box of its class more is a duplicate (default: 0.5)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file of other origin")
    return run_command(parser, argv, _run)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number in 0..1")
    return value


def _run(arguments: argparse.Namespace) -> int:
    step = pseudo_labels_step(
        arguments.output,
        arguments.boxes,
        arguments.predictions,
        min_conf=arguments.min_conf,
        classes=arguments.classes,
        class_thresholds=arguments.class_thresholds,
        max_iou=arguments.max_iou,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
