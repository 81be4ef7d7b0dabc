"""Compares two submissions class by class, with bootstrap intervals over the images."""

import csv
import io
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from tpudet.detection.evaluation.open_images.evaluate import Challenge, ChallengeOptions
from tpudet.detection.evaluation.open_images.metric import Scored, average_precisions
from tpudet.detection.evaluation.open_images.report import ScoredClass, scored_classes
from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.files.claimed_file import claimed_file
from tpudet.trainkit.files.storage import is_file, is_remote

_NUM_SHOWN = 10


class Change(NamedTuple):
    """AP of a class, or the mean over classes, in two submissions; NaN if it is undefined."""

    first: float
    second: float
    low: float  # of second - first, over resamples of the images
    high: float

    def is_sure(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def compare(
    first: Scored,
    second: Scored,
    *,
    num_resamples: int,
    seed: int,
    confidence: float,
) -> tuple[Change, list[Change]]:
    """Compares two submissions that were matched with the same ground truth.

    Images are drawn with replacement, the same ones for both. In a resample the mean is over the
    classes that have ground truth in it, and a class that has none there gives no value.

    Args:
        first: the one to start from.
        second: the other.
        num_resamples: how often images are drawn.
        seed: of the draws.
        confidence: share of the resamples within an interval, in 0..1.

    Returns:
        The change of the mean, and of each of the C classes.
    """
    whole = [average_precisions(scored) for scored in (first, second)]
    generator = np.random.default_rng(seed)
    num_images = first.num_images
    differences = np.empty((num_resamples, first.num_classes))
    means = np.empty(num_resamples)
    short = [_until_last_true(scored) for scored in (first, second)]
    for resample in tqdm(range(num_resamples), desc="resampling", delay=2, leave=False):
        drawn = generator.integers(0, num_images, num_images)
        weights = np.bincount(drawn, minlength=num_images).astype(np.float64)
        precisions = [average_precisions(scored, weights) for scored in short]
        differences[resample] = precisions[1] - precisions[0]
        means[resample] = _mean(differences[resample])
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    intervals = np.stack([_quantiles(column, tails) for column in differences.T])
    total = Change(_mean(whole[0]), _mean(whole[1]), *_quantiles(means, tails).tolist())
    return total, [
        Change(*values)
        for values in zip(*(column.tolist() for column in (*whole, *intervals.T)), strict=True)
    ]


def _until_last_true(scored: Scored) -> Scored:
    """Drops what follows the last true positive of each class: it has no part in AP."""
    last = np.full(scored.num_classes + 1, -1)
    places = np.flatnonzero(scored.is_true)
    last[scored.classes[places]] = places  # they rise, and the last is kept
    kept = np.arange(len(scored.classes)) <= last[scored.classes]
    return scored._replace(
        classes=scored.classes[kept],
        image_indices=scored.image_indices[kept],
        scores=scored.scores[kept],
        is_true=scored.is_true[kept],
    )


def _mean(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else float("nan")


def _quantiles(values: np.ndarray, shares: tuple[float, float]) -> np.ndarray:
    values = values[~np.isnan(values)]
    return np.quantile(values, shares) if len(values) else np.full(2, np.nan)


def compare_submissions(
    first: str,
    second: str,
    options: ChallengeOptions,
    *,
    output: str | None,
    resamples: int,
    seed: int,
    confidence: float,
    force: bool,
) -> str:
    """Compares two submissions with one ground truth.

    Args:
        first: path of the submission to start from.
        second: path of the other.
        options: the ground truth.
        output: path of a CSV to write, a row per class; None for none.
        resamples: how often the images are drawn, at least 1.
        seed: of the draws, at least 0.
        confidence: of the intervals, between 0 and 1.
        force: whether an existing output is replaced.

    Returns:
        The summary for the screen.

    Raises:
        UserError: an argument or a file is not usable; nothing is written then.
    """
    options.check_files(first, second)
    _check_arguments(output or "", confidence, force=force)
    challenge = Challenge(options)
    scores = [challenge.score(path) for path in (first, second)]
    labelled = challenge.labelled
    total, changes = compare(
        scores[0].scored,
        scores[1].scored,
        num_resamples=resamples,
        seed=seed,
        confidence=confidence,
    )
    rows = scored_classes(labelled.truth, scores[0].scored, labelled.classes)
    lines = [
        f"mAP {_describe(total)} at {confidence:.0%} confidence, "
        f"{resamples} resamples of {len(labelled.image_ids)} images"
    ]
    for name, one in zip((first, second), scores, strict=True):
        counts = one.counts
        lines.append(
            f"{name}: {counts.images} images, {counts.predictions} predictions{counts.describe()}"
        )
    lines += [*labelled.notes, *_largest(rows, changes)]
    if output:
        with claimed_file(output, "w", force=force) as file:
            file.write(_table(rows, changes))
        lines.append(f"written to {output}")
    return "\n".join(lines)


def _check_arguments(target: str, confidence: float, *, force: bool) -> None:
    mistakes = []
    if not 0 < confidence < 1:
        mistakes.append(f"--confidence {confidence} must be between 0 and 1")
    if target and is_file(target) and not force:
        mistakes.append(f"{target} exists; -f replaces it")
    folder = os.path.dirname(target) or "."
    if target and not is_remote(target) and not os.path.isdir(folder):
        mistakes.append(f"no folder {folder} to write {os.path.basename(target)} in")
    if mistakes:
        raise SubmissionError("\n".join(mistakes))


def _largest(rows: Sequence[ScoredClass], changes: Sequence[Change]) -> list[str]:
    """Lines for the classes that changed most, the worse and the better."""
    known = [k for k, row in enumerate(rows) if not math.isnan(row.ap)]
    order = sorted(known, key=lambda k: changes[k].second - changes[k].first)
    worse = [k for k in order if changes[k].second < changes[k].first][:_NUM_SHOWN]
    better = [k for k in order[::-1] if changes[k].second > changes[k].first][:_NUM_SHOWN]
    sure = [changes[k] for k in known if changes[k].is_sure()]
    num_better = sum(change.low > 0 for change in sure)
    lines = [
        f"{len(known)} classes with ground truth; {num_better} are better and "
        f"{len(sure) - num_better} worse beyond their interval"
    ]
    for title, chosen in (("largest losses:", worse), ("largest gains:", better)):
        if chosen:
            lines.append(title)
            lines += [f"  {_describe(changes[k])}  {rows[k].name}" for k in chosen]
    return lines


def _describe(change: Change) -> str:
    mark = " *" if change.is_sure() else ""
    return (
        f"{change.first:.4f} -> {change.second:.4f} ({change.second - change.first:+.4f}, "
        f"{change.low:+.4f} to {change.high:+.4f}{mark})"
    )


def _table(rows: Sequence[ScoredClass], changes: Sequence[Change]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ("LabelName", "Name", "Boxes", "GroupOf", "AP_A", "AP_B", "Change", "Low", "High")
    )
    for row, change in zip(rows, changes, strict=True):
        values = (change.first, change.second, change.second - change.first, *change[2:])
        numbers = ("" if math.isnan(value) else f"{value:.6f}" for value in values)
        writer.writerow((row.label, row.name, row.boxes, row.group_of, *numbers))
    return stream.getvalue()
