"""Draws training images, and images of a wrong prediction, with the names of their classes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
import tensorflow as tf

from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.pages.drawing import add_caption, image_grid

_SMALLEST_SHARE = 0.005  # of a class, below which a mixed image does not name it
_COLUMNS = 4
_NARROWEST = 220  # pixels: the caption of a narrower image could not be read


class Mistake(NamedTuple):
    """An image whose predicted classes are not its own."""

    image: np.ndarray  # [H, W, 3] uint8
    targets: np.ndarray  # [C], 0 or 1
    channel: int  # of the class about which the prediction is wrong
    probability: float  # of this class

    @property
    def error(self) -> float:
        """The distance of the probability from the truth, 0..1."""
        return abs(self.probability - float(self.targets[self.channel]))


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


def draw_mistakes(mistakes: Sequence[Mistake], class_names: Sequence[str]) -> np.ndarray | None:
    """Returns a grid of images, each below its classes and `rose 70%`, which is predicted.

    Args:
        mistakes: in their order.
        class_names: C names.

    Returns:
        [h, w, 3] uint8; None without a mistake.
    """
    drawn = []
    for image, targets, channel, probability in mistakes:
        factor = max(1.0, _NARROWEST / image.shape[1])
        large = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
        own = ", ".join(class_names[int(k)] for k in np.flatnonzero(targets >= 0.5)) or "none"
        drawn.append(add_caption(large, f"{own}: {class_names[channel]} {probability:.0%}"))
    return image_grid(drawn, columns=_COLUMNS) if drawn else None
