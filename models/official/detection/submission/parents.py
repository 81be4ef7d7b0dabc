"""Adds the ancestors of each prediction's label to a submission, or keeps only leaf labels."""

from collections.abc import Iterator, Sequence

import numpy as np

from tpudet.detection.submission.ancestors import AncestorTable, ancestor_table, with_ancestors
from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows
from tpudet.detection.submission.hierarchy import default_hierarchy, read_hierarchy_file
from tpudet.detection.submission.mask_header import is_mask_submission
from tpudet.detection.submission.mask_rewrite import add_mask_ancestors, rewrite_masks
from tpudet.detection.submission.mask_rows import MaskPrediction
from tpudet.detection.submission.open_images_csv import MAX_WORD_BYTES, require_words
from tpudet.detection.submission.rewrite import rewrite_submission
from tpudet.detection.submission.unknown_labels import UnknownLabels
from tpudet.detection.submission.writer import check_target, describe
from tpudet.trainkit.class_list import read_classes


def add_parents(
    target: str,
    source: str,
    *,
    hierarchy: str | None,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Repeats each prediction for all ancestors of its label; see `ancestors.with_ancestors`.

    Args:
        target: the submission to write.
        source: the submission to read.
        hierarchy: path of the class hierarchy; None for the challenge's in $DATA.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.

    Returns:
        The summary.

    Raises:
        SubmissionError: the arguments or a file are not usable.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    hierarchy = hierarchy or default_hierarchy()
    check_target(target, [source, hierarchy], force=force)
    table = ancestor_table(read_hierarchy_file(hierarchy))
    require_words(table.labels, f"labels of {hierarchy}", "correct them")
    unknown = UnknownLabels()

    def change(block: Block, rows: ScannedRows) -> ScannedRows:
        unknown.add(block, rows)
        return add_ancestors(rows, table)

    numbers = {label: number for number, label in enumerate(table.labels)}

    def change_masks(predictions: tuple[MaskPrediction, ...]) -> Iterator[MaskPrediction]:
        unknown.add_labels([p.label for p in predictions if p.label not in numbers])
        return add_mask_ancestors(predictions, table, numbers)

    if is_mask_submission(source):
        totals = rewrite_masks(target, source, change_masks, force=force, skip_bad=skip_bad)
    else:
        totals = rewrite_submission(
            target,
            source,
            change,
            labels=table.labels,
            force=force,
            threads=threads,
            skip_bad=skip_bad,
        )
    remark = unknown.describe(f"have labels that {hierarchy} lacks and are unchanged")
    return describe(target, totals, remark)


def drop_parents(
    target: str,
    source: str,
    *,
    hierarchy: str | None,
    classes: str | None,
    force: bool,
    threads: int,
    skip_bad: bool,
) -> str:
    """Leaves out predictions of labels that have descendants.

    The other arguments, the result and the errors are those of `add_parents`.

    Args:
        target: the submission to write.
        source: the submission to read.
        hierarchy: path of the class hierarchy; None for the challenge's in $DATA.
        classes: path of a class list, used instead of a hierarchy: exactly its labels stay.
        force: whether an existing target is replaced.
        threads: at least 1; the result does not depend on it.
        skip_bad: whether bad rows are left out and counted.
    """
    file = classes or hierarchy or default_hierarchy()
    check_target(target, [source, file], force=force)
    labels, stays = _read_labels(file, is_class_list=bool(classes))
    _require_short(labels, file)
    unknown = UnknownLabels()

    def change(block: Block, rows: ScannedRows) -> ScannedRows:
        unknown.add(block, rows)
        return rows.take(stays[rows.label_numbers])

    kept = dict(zip(labels, stays.tolist(), strict=False))

    def change_masks(predictions: tuple[MaskPrediction, ...]) -> list[MaskPrediction]:
        unknown.add_labels([p.label for p in predictions if p.label not in kept])
        return [p for p in predictions if kept.get(p.label, stays[-1])]

    if is_mask_submission(source):
        totals = rewrite_masks(target, source, change_masks, force=force, skip_bad=skip_bad)
    else:
        totals = rewrite_submission(
            target, source, change, labels=labels, force=force, threads=threads, skip_bad=skip_bad
        )
    fate = "are left out" if classes else "are kept"
    return describe(target, totals, unknown.describe(f"have labels that {file} lacks and {fate}"))


def _require_short(labels: Sequence[str], file: str) -> None:
    """Refuses labels that are longer than a word of a submission; others only match no row."""
    too_long = [label for label in labels if len(label.encode()) > MAX_WORD_BYTES]
    if too_long:
        raise SubmissionError(
            f"A label has at most {MAX_WORD_BYTES} bytes in a submission, and "
            f"'{too_long[0][:40]}…' of {file} has {len(too_long[0].encode()):,}: correct it"
        )


def add_ancestors(rows: ScannedRows, table: AncestorTable) -> ScannedRows:
    """Adds the ancestors of the predictions; `rows` were scanned with the labels of the table."""
    chosen, labels = with_ancestors(
        table, rows.images(), rows.label_numbers, rows.scores, rows.boxes
    )
    return rows.take(chosen)._replace(label_numbers=labels)


def _read_labels(file: str, *, is_class_list: bool) -> tuple[tuple[str, ...], np.ndarray]:
    """Known labels, and [labels + 1] bool: which stay, the last entry for unknown labels."""
    if is_class_list:
        labels = tuple(entry.identifier for entry in read_classes(file))
        return labels, np.array([True] * len(labels) + [False])
    hierarchy = read_hierarchy_file(file)
    leaves = [not hierarchy.children[label] for label in hierarchy.labels]
    return hierarchy.labels, np.array([*leaves, True])
