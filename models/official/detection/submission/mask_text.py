"""Masks as the instance segmentation challenge writes them: base64 of zlib of COCO RLE counts."""

import base64
import binascii
import zlib

from tpudet.detection.ops.numpy_masks import Rle, check_rle
from tpudet.trainkit.errors import UserError


class MaskError(UserError):
    """A text that is not a mask."""


def decode_mask(text: str, height: int, width: int) -> Rle:
    """Reads base64 of zlib of COCO RLE counts; checked, because pycocotools does not.

    Raises:
        MaskError: it is not such a text, or not of an image of this size.
    """
    try:
        counts = zlib.decompress(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, zlib.error) as error:
        raise MaskError(f"is not base64 of zlib: {error}") from error
    try:
        check_rle(counts, height=height, width=width)
    except ValueError as error:
        raise MaskError(str(error)) from error
    return {"size": [height, width], "counts": counts}


def encode_mask(rle: Rle) -> str:
    """Inverse of `decode_mask`."""
    counts = rle["counts"]
    data = counts.encode() if isinstance(counts, str) else counts
    return base64.b64encode(zlib.compress(data)).decode()
