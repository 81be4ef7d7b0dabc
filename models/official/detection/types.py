"""The named tuples that the stages exchange, and the letters of their shapes.

B images in a batch; H W height and width of the canvas, the fixed-size image that the network
sees; N instances per image, padded; A anchors per image over all levels; K detections per image,
padded; C foreground classes; M side of a mask.

Boxes are `[y1, x1, y2, x2]`, float32, in canvas pixels, without a +1 anywhere. Class ids are
1-based row numbers of `classes.csv`; 0 means none.
"""

from typing import NamedTuple

from tpudet.trainkit.types import Tensor


class Batch(NamedTuple):
    """Images on their canvas with their ground truth. All numeric, all shapes static.

    A point `p` of the original image lies at `p * scale - offset` on the canvas, per axis.
    """

    images: Tensor  # [B, H, W, 3] uint8; outside the image 0
    boxes: Tensor  # [B, N, 4] float32; padding is 0
    classes: Tensor  # [B, N] int32; padding is 0
    is_crowd: Tensor  # [B, N] bool; such a box is a region to ignore, not an instance
    records: Tensor  # [B] int64, number of the record; -1: a filler that completes the last batch
    original_sizes: Tensor  # [B, 2] float32, height and width of the original image
    scales: Tensor  # [B, 2] float32, canvas pixels per original pixel, y and x
    offsets: Tensor  # [B, 2] float32, y and x, canvas pixels
    # [B, N, H, W / 8] uint8, one bit per pixel, the leftmost the highest (`numpy.packbits`): 5 MB
    # per image at N = 100 and 640 x 640. None where no task needs masks.
    masks: Tensor | None = None


class RawPredictions(NamedTuple):
    """The outputs of a one-stage detector for every anchor, before decoding."""

    class_logits: Tensor  # [B, A, C]; channel k is class k + 1
    box_deltas: Tensor  # [B, A, 4], encoded against the anchors
    centerness_logits: Tensor | None = None  # [B, A]; None from a head without centerness


class Detections(NamedTuple):
    """The detections of each image, best first; the first `num_detections` rows are valid."""

    boxes: Tensor  # [B, K, 4] float32, canvas pixels; padding is 0
    scores: Tensor  # [B, K] float32; padding is 0
    classes: Tensor  # [B, K] int32; padding is 0
    num_detections: Tensor  # [B] int32
    # [B, K, M, M] float32, 0..1, over the box; None from a detector without masks
    masks: Tensor | None = None


class DetectionTable(NamedTuple):
    """The detections of many images as columns: D rows.

    Boxes are y1 x1 y2 x2, in pixels or in 0..1 of the image, as their ground truth is.
    """

    image_indices: Tensor  # [D] int, row of the image in the ground truth
    boxes: Tensor  # [D, 4] float
    scores: Tensor  # [D] float
    classes: Tensor  # [D] int, 1-based
    # D COCO RLE dicts, of whole images; None from a detector without masks
    masks: list | None = None
