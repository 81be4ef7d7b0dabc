"""Masks to run lengths, by the batch in worker processes: without Keras or TensorFlow.

COCO's evaluation of 5000 images pastes 500,000 masks: 0.7 ms each on a slow core, as long as an
accelerator takes to predict them. Run lengths take about 0.6 KB per detection, whatever the size
of the image.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.ops.numpy_masks import Rle, encode_rle, paste_rle
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.opencv_decode import decode_mask_image

# The main process predicts meanwhile. On two cores workers would only take its time.
NUM_WORKERS = max(1, min(8, (os.cpu_count() or 1) // 2))


class PasteJob(NamedTuple):
    """Detected masks of some images, to be pasted into them: n detections."""

    number: int  # of the job
    masks: np.ndarray  # [n, M, M] float, 0..1, over the box
    boxes: np.ndarray  # [n, 4] y1 x1 y2 x2, pixels of the original image
    sizes: np.ndarray  # [n, 2] int, height and width of its image


class PngJob(NamedTuple):
    """Masks of records."""

    number: int  # of the job
    encoded: Sequence[bytes]  # n PNG files


class MaskFileError(ValueError):
    """A mask of a record cannot be read."""


def paste_job(job: PasteJob, progress: Callable[[int], Any]) -> tuple[int, list[Rle]]:
    """Returns the job's number and n COCO RLE of whole images; for `run_jobs`."""
    del progress  # the images are counted where they are predicted
    return job.number, [
        paste_rle(mask, box, height=height, width=width)
        for mask, box, (height, width) in zip(job.masks, job.boxes, job.sizes.tolist(), strict=True)
    ]


def png_job(job: PngJob, progress: Callable[[int], Any]) -> tuple[int, list[Rle]]:
    """Returns the job's number and n COCO RLE, any value above 0 being inside; for `run_jobs`.

    Raises:
        MaskFileError: a file cannot be decoded.
    """
    del progress
    return job.number, [_decode(encoded) for encoded in job.encoded]


def _decode(encoded: bytes) -> Rle:
    try:
        return encode_rle(decode_mask_image(encoded))
    except ImageError as error:
        raise MaskFileError(f"a mask of a record: {error}") from error
