"""How sure a difference between two submissions is: bootstrap over the images."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.open_images.metric import Scored, average_precisions


class Change(NamedTuple):
    """AP of a class, or the mean over classes, in two submissions; NaN where there is none."""

    first: float
    second: float
    low: float  # of second - first, over resamples of the images
    high: float

    def is_sure(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0 or self.high < 0


def compare(
    first: Scored,
    second: Scored,
    *,
    num_resamples: int,
    seed: int,
    confidence: float,
    progress: Sequence[int] | Iterator[int] | None = None,
) -> tuple[Change, list[Change]]:
    """Compares two submissions that were matched with the same ground truth.

    Images are drawn with replacement, the same ones for both. In a resample the mean is over the
    classes that have ground truth in it, and a class that has none there gives no value.

    Args:
        first: the one to start from.
        second: the other.
        num_resamples: how often images are drawn.
        seed: of the draws.
        confidence: share of the resamples that lies within an interval, in 0..1.
        progress: what to iterate over instead of `range(num_resamples)`, a progress bar say.

    Returns:
        The change of the mean, and of each of the C classes.
    """
    whole = [average_precisions(scored) for scored in (first, second)]
    generator = np.random.default_rng(seed)
    num_images = first.num_images
    differences = np.empty((num_resamples, first.num_classes))
    means = np.empty(num_resamples)
    short = [_until_last_true(scored) for scored in (first, second)]
    for resample in progress if progress is not None else range(num_resamples):
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
    """Drops what lies behind the last true positive of each class: it has no part in AP."""
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
