"""The named tuples that the stages exchange, and the letters of their shapes.

B images in a batch; H W height and width of the images that the network sees; C classes. Class ids
are 1-based row numbers of `classes.csv`; channel k of every tensor with C channels is class k + 1.
"""

from typing import NamedTuple

from tpudet.trainkit.types import Tensor

# The probability from which an image counts as of a class, where it may be of several.
LABEL_THRESHOLD = 0.5


class Batch(NamedTuple):
    """Images with what they show. All numeric, all shapes static."""

    images: Tensor  # [B, H, W, 3] uint8
    # [B, C] float32: 1 for each class of the image, else 0; shares after mixing. 0 without a label.
    targets: Tensor
    records: Tensor  # [B] int64, number of the record; -1: a filler that completes the last batch


class Predictions(NamedTuple):
    """The output of a classifier for each image."""

    probabilities: Tensor  # [B, C] float32; they add up to 1 only if classes exclude each other
