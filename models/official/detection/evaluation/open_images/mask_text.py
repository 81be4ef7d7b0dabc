"""Masks as the instance segmentation challenge writes them: base64 of zlib of COCO RLE counts."""

import base64
import binascii
import zlib
from typing import Any

import numpy as np

Mask = Any  # COCO RLE, a dict of `size` and `counts`, as pycocotools takes and gives it


class MaskError(ValueError):
    """A text that is no mask."""


def decode_mask(text: str, height: int, width: int) -> Mask:
    """Reads base64 of zlib of COCO RLE counts; checked, because pycocotools does not.

    Raises:
        MaskError: it is no such text, or not of a picture of this size.
    """
    try:
        counts = zlib.decompress(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, zlib.error) as error:
        raise MaskError(f"is no base64 of zlib: {error}") from error
    runs = _run_lengths(counts)
    if (runs < 0).any() or runs.sum() != height * width:
        raise MaskError(f"is not the mask of a picture {width} wide and {height} high")
    return {"size": [height, width], "counts": counts}


def _run_lengths(counts: bytes) -> np.ndarray:
    """The run lengths of COCO's text: five bits a letter, differences to the run before last.

    Raises:
        MaskError: a letter is not one of them, or the last number is cut off.
    """
    letters = np.frombuffer(counts, np.uint8).astype(np.int64) - 48
    if not len(letters) or (letters < 0).any() or (letters > 63).any() or letters[-1] & 32:
        raise MaskError("is no COCO run-length encoding")
    starts = np.concatenate([[0], np.flatnonzero(letters[:-1] & 32 == 0) + 1])
    sizes = np.diff(np.append(starts, len(letters)))
    if sizes.max() > 7:
        raise MaskError("is no COCO run-length encoding: a number is too long")
    places = np.arange(len(letters)) - np.repeat(starts, sizes)
    values = np.add.reduceat((letters & 31) << (5 * places), starts)
    values -= np.where(letters[starts + sizes - 1] & 16, 1 << (5 * sizes), 0)
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values
