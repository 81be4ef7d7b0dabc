"""Draws images with the names of their classes."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.pages.drawing import add_caption, image_grid

_SMALLEST_SHARE = 0.005  # of a class, below which a mixed image does not name it


def draw_training_images(
    dataset: tf.data.Dataset, *, classes: Sequence[ClassEntry], num_images: int
) -> np.ndarray:
    """Returns a nearly square grid of the first images of a dataset, [h, w, 3] uint8.

    Args:
        dataset: of `Batch`.
        classes: rows of the class list.
        num_images: how many.
    """
    drawn: list[np.ndarray] = []
    for images, targets, _ in dataset:
        pairs = zip(np.asarray(images), np.asarray(targets), strict=True)
        drawn += [add_caption(image, _caption(shares, classes)) for image, shares in pairs]
        if len(drawn) >= num_images:
            break
    return image_grid(drawn[:num_images], columns=math.ceil(math.sqrt(num_images)))


def _caption(shares: np.ndarray, classes: Sequence[ClassEntry]) -> str:
    """`rose`, `rose 70%, daisy 30%` of a mixed image, `-` of one without a class."""
    places = np.flatnonzero(shares >= _SMALLEST_SHARE).tolist()
    found = [(classes[k].name, shares[k]) for k in places]
    return ", ".join(n if s == 1 else f"{n} {s:.0%}" for n, s in found) or "-"
