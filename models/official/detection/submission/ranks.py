"""Ranks of predictions, by which the best of a file are kept."""

import numpy as np

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.fusion.printed_numbers import printed_units

FIRST = 100_001  # of an image's first prediction with keep_first: above the score 1.00000


def score_ranks(scores: np.ndarray, is_first: np.ndarray | None = None) -> np.ndarray:
    """[n] int64: scores as they are printed, in units of 0.00001; FIRST where `is_first`.

    Args:
        scores: [n] in 0..1.
        is_first: [n] bool; None where the first predictions of images rank as all others.
    """
    ranks = printed_units(scores)
    if is_first is not None:
        ranks[is_first] = FIRST
    return ranks


def require_room(num_first: int, max_num: int) -> None:
    """Raises a SubmissionError if the first predictions alone are more than `max_num`."""
    if num_first > max_num:
        raise SubmissionError(
            f"--keep_first keeps a prediction of each of {num_first} images: more than {max_num}"
        )
