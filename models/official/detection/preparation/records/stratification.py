"""Stratified splits: every fold or share gets its part of the images of every class.

Iterative stratification (Sechidis, Tsoumakas, Vlahavas: On the Stratification of Multi-Label Data,
ECML PKDD 2011), as implemented in the package `iterative-stratification`: rarest class first, each
of its images goes to the share that lacks the class most.
"""

import math
import sys
from collections.abc import Sequence

import numpy as np

from tpudet.detection.preparation.sources.box_csv import PROGRESS_DELAY
from tpudet.trainkit.errors import UserError


def assign_folds(
    num_images: int,
    box_images: np.ndarray,
    box_classes: np.ndarray,
    *,
    num_folds: int,
    seed: int,
) -> np.ndarray:
    """Assigns images to folds of equal size with an equal share of every class.

    Gives the result of iterstrat's MultilabelStratifiedKFold with shuffle=True.

    Args:
        num_images: number of images, with boxes or without.
        box_images: [boxes] row number of the image of each box.
        box_classes: [boxes] class numbers, from 0, with gaps or without.
        num_folds: at least 2.
        seed: equal seeds give equal folds on every platform.

    Returns:
        [images] fold, from 0.

    Raises:
        UserError: fewer than 2 folds, or fewer images than folds.
    """
    if num_folds < 2:
        raise UserError(f"{num_folds} folds are not a split: give 2 or more.")
    fractions = [1 / num_folds] * num_folds
    return assign_fractions(num_images, box_images, box_classes, fractions=fractions, seed=seed)


def assign_fractions(
    num_images: int,
    box_images: np.ndarray,
    box_classes: np.ndarray,
    *,
    fractions: Sequence[float],
    seed: int,
) -> np.ndarray:
    """As `assign_folds`, for shares of given sizes; images without boxes are spread as well.

    Takes two bytes of memory per image and class, and about `estimate_seconds`; prints the estimate
    on stderr if it is more than a few seconds.

    Args:
        num_images: as for `assign_folds`.
        box_images: [boxes] as for `assign_folds`.
        box_classes: [boxes] as for `assign_folds`.
        fractions: shares of the images, each above 0; their sum is 1.
        seed: of the shuffle and of ties.

    Returns:
        [images] index into `fractions`.

    Raises:
        UserError: the fractions do not add up to 1, or there are fewer images than shares.
    """
    # Imported here because it imports scikit-learn, which takes a second.
    from iterstrat.ml_stratifiers import IterativeStratification

    if min(fractions) <= 0 or not math.isclose(sum(fractions), 1, abs_tol=1e-6):
        shares = ", ".join(f"{fraction:g}" for fraction in fractions)
        raise UserError(f"The shares {shares} must each be above 0 and add up to 1.")
    if num_images < len(fractions):
        raise UserError(f"{num_images} images cannot be split into {len(fractions)} shares.")
    labels = _label_matrix(num_images, box_images, box_classes)
    seconds = estimate_seconds(*labels.shape)
    if seconds > PROGRESS_DELAY:
        what = f"{num_images} images of {labels.shape[1]} classes"
        print(f"Stratifying {what} takes about {seconds:.0f} s.", file=sys.stderr, flush=True)
    # The legacy generator, because its stream is guaranteed to stay the same.
    random_state = np.random.RandomState(seed)
    order = np.arange(num_images)
    random_state.shuffle(order)
    shares = np.empty(num_images, np.int64)
    shares[order] = IterativeStratification(labels[order], np.array(fractions), random_state)
    return shares


def estimate_seconds(num_images: int, num_classes: int) -> float:
    """Estimates the duration of an assignment, within about a factor of two.

    Measured on a core of 2026: 2.7 s for 200,000 images of 100 classes, 28 s for 200,000 of 500,
    10 s for 1.2 million of 32. Every image costs one Python iteration, every class a pass over the
    whole table.
    """
    return num_images * (8e-6 + 0.54e-9 * num_classes**2)


def _label_matrix(num_images: int, box_images: np.ndarray, box_classes: np.ndarray) -> np.ndarray:
    """[images, classes] bool: which images have a box of which class, for classes that occur."""
    occurs = np.bincount(box_classes) > 0
    columns = np.cumsum(occurs) - 1
    labels = np.zeros((num_images, np.count_nonzero(occurs)), bool)
    labels[box_images, columns[box_classes]] = True
    return labels


def images_per_fold(
    folds: np.ndarray, box_images: np.ndarray, box_classes: np.ndarray, *, num_folds: int
) -> np.ndarray:
    """[folds, classes] number of images, for the classes that occur, in ascending order."""
    labels = _label_matrix(len(folds), box_images, box_classes)
    return np.stack([labels[folds == fold].sum(axis=0) for fold in range(num_folds)])
