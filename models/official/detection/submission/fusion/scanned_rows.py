"""The predictions of a block of images as NumPy arrays, between reading and printing."""

from typing import NamedTuple

import numpy as np


class ScannedRows(NamedTuple):
    """The n predictions of a block of images, in the order of the images and of their text.

    Labels are not copied: where `label_numbers` is -1, a label is `label_lengths[i]` bytes from
    `label_starts[i]` in file `label_files[i]`; otherwise it is that one of the known labels which
    were given to the scan. Setting a number, then, changes the label.
    """

    image_ends: np.ndarray  # [images + 1] int64; image i has rows image_ends[i]:image_ends[i + 1]
    label_files: np.ndarray  # [n] int32
    label_starts: np.ndarray  # [n] int64
    label_lengths: np.ndarray  # [n] int32
    label_numbers: np.ndarray  # [n] int32
    scores: np.ndarray  # [n] float64 in 0..1
    boxes: np.ndarray  # [n, 4] float64 x1 y1 x2 y2

    def first_of_image(self) -> np.ndarray:
        """[n] bool: whether a prediction is the first of its image."""
        first = np.zeros(len(self.scores), bool)
        starts = self.image_ends[:-1]
        first[starts[starts < self.image_ends[1:]]] = True
        return first

    def images(self) -> np.ndarray:
        """[n] int64: the image of each prediction, its place in the block."""
        return np.repeat(np.arange(len(self.image_ends) - 1), np.diff(self.image_ends))

    def take(self, chosen: np.ndarray) -> "ScannedRows":
        """Returns only the chosen predictions, or predictions in another order.

        Args:
            chosen: [n] bool, or indices [m] by which the predictions of an image stay together
                and the images in order; an index may occur more than once.
        """
        if chosen.dtype == bool:
            ends = np.concatenate([[0], np.cumsum(chosen, dtype=np.int64)])[self.image_ends]
        else:
            counts = np.bincount(self.images()[chosen], minlength=len(self.image_ends) - 1)
            ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return ScannedRows(ends, *(column[chosen] for column in self[1:]))
