"""Splits classes into groups of similar frequency; human parts form a group of their own."""

import csv
import io
import os
from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from tpudet.detection.preparation.open_images.challenge import BOUNDARIES, STEP_CODE
from tpudet.detection.preparation.open_images.human_parts import (
    HumanParts,
    read_human_parts,
    write_human_boxes,
)
from tpudet.detection.preparation.open_images.whole_files import whole_files
from tpudet.detection.preparation.sources.annotations import distinct_pairs
from tpudet.detection.preparation.sources.box_csv import read_boxes
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.submission.hierarchy import read_hierarchy_file
from tpudet.trainkit.class_list import ClassEntry, class_ids, read_classes, write_class_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.jobs.steps import Step


def count_images(boxes: pd.DataFrame, classes: Sequence[ClassEntry]) -> np.ndarray:
    """Counts the images that have a box of each class.

    Args:
        boxes: ImageID and LabelName as `read_boxes` returns them; rows with other labels, or with
            none, are ignored.
        classes: C classes; a label is an identifier or a name.

    Returns:
        [C] int64.
    """
    class_id = label_class_ids(boxes["LabelName"], class_ids(classes))
    _, present = distinct_pairs(boxes["ImageID"].cat.codes.to_numpy(np.int64), class_id)
    return np.bincount(present, minlength=len(classes) + 1)[1:]


def split_classes(
    counts: np.ndarray,
    classes: Sequence[ClassEntry],
    *,
    boundaries: Sequence[int] = BOUNDARIES,
    human_parts: Collection[str] = (),
) -> dict[str, tuple[ClassEntry, ...]]:
    """Splits the classes, sorted by ascending number of images, at the boundaries.

    Human parts are taken out first, so that the boundaries count the other classes only. Classes
    with equal counts are sorted by identifier, so that the result is the same on every platform.

    Args:
        counts: [C] images per class.
        classes: C classes.
        boundaries: ranks where the groups begin, from 0; the last one is the end of the last group.
        human_parts: identifiers or names of classes.

    Returns:
        `part_0`, `part_1` and so on, and `human_parts` if there are any. Every class is in exactly
        one group, rarest first.

    Raises:
        UserError: the boundaries do not increase from 0, a group gets no class or a class no group,
            or a human part is not a class.
    """
    _check_boundaries(boundaries)
    ids = class_ids(classes)
    unknown = sorted(set(human_parts) - set(ids))
    if unknown:
        raise UserError(f"Human parts that are not classes: {', '.join(unknown)}.")
    human = {ids[label] - 1 for label in human_parts}
    order = _rarest_first(counts, classes)
    others = [classes[row] for row in order if row not in human]
    if not boundaries[-2] < len(others) <= boundaries[-1]:
        fitting = [rank for rank in boundaries if rank < len(others)] + [len(others)]
        raise UserError(
            f"--boundaries {_join(boundaries)} suit {boundaries[-2] + 1} to {boundaries[-1]} "
            f"classes, but there are {len(others)} to split"
            + (f": pass --boundaries {_join(fitting)}." if others else ".")
        )
    groups = {
        f"part_{number}": tuple(others[first:last])
        for number, (first, last) in enumerate(zip(boundaries, boundaries[1:], strict=False))
    }
    if human:
        groups["human_parts"] = tuple(classes[row] for row in order if row in human)
    return groups


def _rarest_first(counts: np.ndarray, classes: Sequence[ClassEntry]) -> list[int]:
    """Returns row numbers of `classes`."""
    return sorted(range(len(classes)), key=lambda row: (counts[row], classes[row].identifier))


def _check_boundaries(boundaries: Sequence[int]) -> None:
    increasing = all(a < b for a, b in zip(boundaries, boundaries[1:], strict=False))
    if len(boundaries) < 2 or boundaries[0] != 0 or not increasing:
        raise UserError(
            f"--boundaries {_join(boundaries)} must be two or more numbers that increase from 0, "
            f"such as {_join(BOUNDARIES)}."
        )


def _join(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def split_step(
    output_dir: str,
    boxes: str,
    classes: str,
    *,
    boundaries: Sequence[int] = BOUNDARIES,
    human_parts: str | None = None,
    human_images: str | None = None,
    hierarchy: str | None = None,
) -> Step:
    """Returns the step that counts the images of classes and splits the classes.

    Args:
        output_dir: folder for classes_stats.csv, classes_part_0.csv and so on, and for
            classes_human_parts.csv and train_human_parts.csv if there are human parts.
        boxes: box CSV to count in.
        classes: class list, usually of the leaf classes.
        boundaries: as for `split_classes`.
        human_parts: file with one label per line; None makes no such group.
        human_images: file of image ids; train_human_parts.csv then holds rows of these only.
        hierarchy: JSON with more known labels, because human parts may be parents of classes.
    """
    names = ["classes_stats.csv"]
    names += [f"classes_part_{number}.csv" for number in range(len(boundaries) - 1)]
    if human_parts is not None:
        names += ["classes_human_parts.csv", "train_human_parts.csv"]
    inputs = (boxes, classes, human_parts, human_images, hierarchy)
    return Step(
        name=f"Split classes of {os.path.basename(classes)}",
        inputs=tuple(path for path in inputs if path is not None),
        options={
            "boundaries": list(boundaries),
            # Tells the same files in other roles apart.
            "given": [path is not None for path in inputs],
        },
        outputs=tuple(os.path.join(output_dir, name) for name in names),
        run=lambda: _write_split(
            output_dir,
            boxes,
            classes,
            boundaries=boundaries,
            human_parts=human_parts,
            human_images=human_images,
            hierarchy=hierarchy,
        ),
        code=STEP_CODE,
    )


def _write_split(
    output_dir: str,
    boxes: str,
    classes: str,
    *,
    boundaries: Sequence[int],
    human_parts: str | None,
    human_images: str | None,
    hierarchy: str | None,
) -> str:
    """Writes the files of `split_step`; returns its summary."""
    entries = read_classes(classes, "CLASSES")
    table = read_boxes(boxes, "BBOXES", columns=("ImageID", "LabelName"))
    counts = count_images(table, entries)
    if not counts.any():
        raise UserError(f"No class of CLASSES {classes} occurs in BBOXES {boxes}.")
    human = HumanParts((), ())
    if human_parts is not None:
        human = read_human_parts(human_parts, entries, _other_labels(table, hierarchy))
    labels = [entry.identifier for entry in human.classes]
    groups = split_classes(counts, entries, boundaries=boundaries, human_parts=labels)
    summary = [_summarize(table, entries, counts, groups)]
    texts = {"classes_stats.csv": _statistics(entries, counts)}
    texts |= {f"classes_{part}.csv": write_class_list(group) for part, group in groups.items()}
    names = [*texts, *(["train_human_parts.csv"] if human_parts is not None else [])]
    with whole_files([os.path.join(output_dir, name) for name in names]) as files:
        for file, text in zip(files, texts.values(), strict=False):
            file.write(text.encode())
        if human_parts is not None:
            summary.append(write_human_boxes(files[-1], boxes, human, human_images))
    return " ".join(summary)


def _other_labels(boxes: pd.DataFrame, hierarchy: str | None) -> set[str]:
    """Returns the labels that are known besides those of the classes."""
    labels = set(boxes["LabelName"].cat.categories)
    if hierarchy is None:
        return labels
    return labels.union(read_hierarchy_file(hierarchy).labels)


def _summarize(
    boxes: pd.DataFrame,
    classes: Sequence[ClassEntry],
    counts: np.ndarray,
    groups: dict[str, tuple[ClassEntry, ...]],
) -> str:
    class_id = label_class_ids(boxes["LabelName"], class_ids(classes))
    num_blank = int(boxes["LabelName"].isna().sum())
    num_other = int((class_id == 0).sum()) - num_blank
    sizes = ", ".join(f"{part} {len(group)}" for part, group in groups.items())
    text = f"{len(classes)} classes with {counts.min()} to {counts.max()} images: {sizes}."
    if not counts.all():
        text += f" {(counts == 0).sum()} classes have no images."
    if num_other:
        text += f" {num_other} of {len(boxes)} rows have other labels."
    return text + (f" {num_blank} rows have no label." if num_blank else "")


def _statistics(classes: Sequence[ClassEntry], counts: np.ndarray) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("classes", "names", "count"))
    rows.writerows((*classes[row], int(counts[row])) for row in _rarest_first(counts, classes))
    return text.getvalue()
