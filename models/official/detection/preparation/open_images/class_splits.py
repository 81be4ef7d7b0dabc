"""Command: classes in groups of like frequency, with the human parts in one of their own."""

import argparse
import csv
import functools
import io
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tpudet.detection.preparation.open_images.default_paths import (
    HIERARCHY,
    HUMAN_IMAGES,
    HUMAN_PARTS,
    TRAIN_BOXES,
    data_path,
    storage_path,
)
from tpudet.detection.preparation.open_images.human_parts import (
    HumanParts,
    read_human_parts,
    write_human_boxes,
)
from tpudet.detection.preparation.open_images.leaf_classes import read_hierarchy_file
from tpudet.detection.preparation.sources.annotations import PreparationError, distinct_pairs
from tpudet.detection.preparation.sources.box_csv import read_boxes
from tpudet.detection.preparation.sources.checks import label_class_ids
from tpudet.detection.preparation.sources.input_files import read_classes
from tpudet.trainkit.class_list import ClassEntry, class_ids, write_class_list
from tpudet.trainkit.command_line import run_command
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.storage import write_text
from tpudet.trainkit.jobs.steps import Step, run_step

DEFAULT_BOUNDARIES = (0, 100, 200, 300, 400, 450)

_EPILOG = """Writes classes_stats.csv (classes,names,count; rarest first), classes_part_0.csv and so
on and, with human parts, classes_human_parts.csv and train_human_parts.csv, the rows of BBOXES that
are theirs. Labels may be the identifiers of the classes or their names.

example:
  scripts/split_classes.py $DATA/challenge-2019-train-detection-bbox.csv \\
      $STORAGE/prepared/classes_leaf.csv --output_dir $STORAGE/prepared
exit status: 0 done or up to date, 2 wrong arguments or inputs (nothing half-written),
130 interrupted
"""


def count_images(boxes: pd.DataFrame, classes: Sequence[ClassEntry]) -> np.ndarray:
    """Counts the distinct images that have a box of each class.

    Args:
        boxes: ImageID and LabelName as `read_boxes` gives them; rows of other labels, or of none,
            count for nothing.
        classes: C of them; a label is one's identifier or its name.

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
    boundaries: Sequence[int] = DEFAULT_BOUNDARIES,
    human_parts: Collection[str] = (),
) -> dict[str, tuple[ClassEntry, ...]]:
    """Cuts the classes, by ascending number of images, into groups.

    The human parts are set aside first; so the boundaries count the others. Classes with as many
    images are in the order of their identifiers, character by character: the same everywhere.

    Args:
        counts: [C] images a class; classes with none are the first.
        classes: C of them.
        boundaries: ranks where the groups begin, from 0, and where the last one ends at the latest.
        human_parts: identifiers or names of classes.

    Returns:
        `part_0`, `part_1` and so on, and with human parts `human_parts`; every class is in exactly
        one of them, rarest first.

    Raises:
        PreparationError: the boundaries do not increase from 0, leave a group without a class or a
            class without a group; or a human part is no class.
    """
    _check_boundaries(boundaries)
    ids = class_ids(classes)
    unknown = sorted(set(human_parts) - set(ids))
    if unknown:
        raise PreparationError(f"Human parts that are no classes: {', '.join(unknown)}.")
    human = {ids[label] - 1 for label in human_parts}
    order = _rarest_first(counts, classes)
    others = [classes[row] for row in order if row not in human]
    if not boundaries[-2] < len(others) <= boundaries[-1]:
        fitting = [rank for rank in boundaries if rank < len(others)] + [len(others)]
        raise PreparationError(
            f"--boundaries {_listed(boundaries)} suit {boundaries[-2] + 1} to {boundaries[-1]} "
            f"classes, but {len(others)} are to be split"
            + (f": pass --boundaries {_listed(fitting)}." if others else ".")
        )
    groups = {
        f"part_{number}": tuple(others[first:last])
        for number, (first, last) in enumerate(zip(boundaries, boundaries[1:], strict=False))
    }
    if human:
        groups["human_parts"] = tuple(classes[row] for row in order if row in human)
    return groups


def _rarest_first(counts: np.ndarray, classes: Sequence[ClassEntry]) -> list[int]:
    """Row numbers of `classes`."""
    return sorted(range(len(classes)), key=lambda row: (counts[row], classes[row].identifier))


def _check_boundaries(boundaries: Sequence[int]) -> None:
    increasing = all(a < b for a, b in zip(boundaries, boundaries[1:], strict=False))
    if len(boundaries) < 2 or boundaries[0] != 0 or not increasing:
        raise PreparationError(
            f"--boundaries {_listed(boundaries)} must be two numbers or more that increase from 0, "
            f"such as {_listed(DEFAULT_BOUNDARIES)}."
        )


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(str(number) for number in numbers)


def split_step(
    output_dir: str,
    boxes: str,
    classes: str,
    *,
    boundaries: Sequence[int] = DEFAULT_BOUNDARIES,
    human_parts: str | None = None,
    human_images: str | None = None,
    hierarchy: str | None = None,
) -> Step:
    """The step that counts and splits classes.

    Args:
        output_dir: where classes_stats.csv, classes_part_0.csv and so on go, and with human parts
            classes_human_parts.csv and train_human_parts.csv.
        boxes: box CSV to count in.
        classes: class list, of the leaves say.
        boundaries: as for `split_classes`.
        human_parts: list of labels; None makes no such group.
        human_images: list of images; train_human_parts.csv then holds rows of these only.
        hierarchy: JSON whose labels are known too: human parts may be among the parents.
    """
    names = ["classes_stats.csv"]
    names += [f"classes_part_{number}.csv" for number in range(len(boundaries) - 1)]
    if human_parts is not None:
        names += ["classes_human_parts.csv", "train_human_parts.csv"]
    inputs = (boxes, classes, human_parts, human_images, hierarchy)
    path_of = functools.partial(os.path.join, output_dir)

    def run() -> str:
        entries = read_classes(classes, "CLASSES")
        table = read_boxes(boxes, "BBOXES", columns=("ImageID", "LabelName"))
        counts = count_images(table, entries)
        if not counts.any():
            raise PreparationError(f"No class of CLASSES {classes} occurs in BBOXES {boxes}.")
        human = HumanParts((), ())
        if human_parts is not None:
            others = _other_labels(table, hierarchy)
            human = read_human_parts(human_parts, entries, others)
        labels = [entry.identifier for entry in human.classes]
        groups = split_classes(counts, entries, boundaries=boundaries, human_parts=labels)
        told = [_in_words(table, entries, counts, groups)]
        if human_parts is not None:
            target = path_of("train_human_parts.csv")
            told.append(write_human_boxes(target, boxes, human, human_images))
        write_text(path_of("classes_stats.csv"), _statistics(entries, counts))
        for part, group in groups.items():
            write_text(path_of(f"classes_{part}.csv"), write_class_list(group))
        return " ".join(told)

    return Step(
        name=f"Split classes of {os.path.basename(classes)}",
        inputs=tuple(path for path in inputs if path is not None),
        options={
            "boundaries": list(boundaries),
            "given": [path is not None for path in inputs],  # the same files in other roles
        },
        outputs=tuple(path_of(name) for name in names),
        run=run,
    )


def _other_labels(boxes: pd.DataFrame, hierarchy: str | None) -> set[str]:
    """Labels that are known beside those of the classes."""
    labels = set(boxes["LabelName"].cat.categories)
    if hierarchy is None:
        return labels
    return labels.union(read_hierarchy_file(hierarchy, "--hierarchy").labels)


def _in_words(
    boxes: pd.DataFrame,
    classes: Sequence[ClassEntry],
    counts: np.ndarray,
    groups: dict[str, tuple[ClassEntry, ...]],
) -> str:
    class_id = label_class_ids(boxes["LabelName"], class_ids(classes))
    num_blank = int(boxes["LabelName"].isna().sum())
    num_other = int((class_id == 0).sum()) - num_blank
    sizes = ", ".join(f"{part} {len(group)}" for part, group in groups.items())
    told = f"{len(classes)} classes with {counts.min()} to {counts.max()} images: {sizes}."
    if not counts.all():
        told += f" {(counts == 0).sum()} classes have no image."
    if num_other:
        told += f" {num_other} of {len(boxes)} rows have other labels."
    return told + (f" {num_blank} rows have no label." if num_blank else "")


def _statistics(classes: Sequence[ClassEntry], counts: np.ndarray) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("classes", "names", "count"))
    rows.writerows((*classes[row], int(counts[row])) for row in _rarest_first(counts, classes))
    return text.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="split_classes.py",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    leaves = storage_path("prepared", "classes_leaf.csv")
    _add(
        parser, "boxes", data_path(TRAIN_BOXES), "box CSV to count in", metavar="BBOXES", nargs="?"
    )
    _add(parser, "classes", leaves, "class list to split", metavar="CLASSES", nargs="?")
    _add(parser, "--output_dir", storage_path("prepared"), "folder to write to", metavar="DIR")
    _add(
        parser,
        "--boundaries",
        _listed(DEFAULT_BOUNDARIES),
        "ranks, by ascending number of images, where groups begin and the last one ends",
        type=boundaries_argument,
        metavar="0,N,...",
    )
    _add(
        parser,
        "--human_parts",
        data_path(HUMAN_PARTS),
        "list of the labels that make a group of their own; '' for none",
        metavar="FILE",
    )
    _add(
        parser,
        "--human_images",
        _if_there(data_path(HUMAN_IMAGES)),
        "list of the images that train_human_parts.csv may take, by default all of BBOXES",
        metavar="FILE",
    )
    _add(
        parser,
        "--hierarchy",
        _if_there(data_path(HIERARCHY)),
        "JSON of labels that the list of human parts may have beside those of CLASSES and BBOXES",
        metavar="FILE",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    return run_command(parser, argv, _run)


def _add(
    parser: argparse.ArgumentParser, name: str, default: Any, what: str, **options: Any
) -> None:
    parser.add_argument(name, default=default, help=f"{what} (default: {default})", **options)


def _if_there(path: str) -> str | None:
    return path if storage.exists(path) else None


def boundaries_argument(text: str) -> tuple[int, ...]:
    """An argument type: whole numbers with commas between them."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is no list of whole numbers such as {_listed(DEFAULT_BOUNDARIES)}"
        ) from None


def _run(arguments: argparse.Namespace) -> int:
    step = split_step(
        arguments.output_dir,
        arguments.boxes,
        arguments.classes,
        boundaries=arguments.boundaries,
        human_parts=arguments.human_parts or None,
        human_images=arguments.human_images or None,
        hierarchy=arguments.hierarchy or None,
    )
    run_step(step, overwrite=arguments.overwrite)
    return 0
