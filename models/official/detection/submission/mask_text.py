"""Masks as the instance segmentation challenge writes them: base64 of zlib of COCO RLE counts."""

import base64
import binascii
import zlib

from tpudet.detection.ops.numpy_masks import Rle, check_rle
from tpudet.trainkit.errors import UserError

# Every run of a mask takes at most 7 characters and has a pixel, but the first, which may be empty;
# and a file of kilobytes must not unpack to gigabytes. Two million runs: a hundred in each column
# of 20,000.
_RUN_BYTES = 7
_MAX_BYTES = 1 << 22
# Of all masks of a file together, in memory. Text of a mask is larger than its run lengths as a
# rule; a mask that is a box may be 50 times smaller.
_GROWTH = 64
_SLACK = 1 << 26


class MaskError(UserError):
    """A string that is not a mask."""


class UnpackedMasks:
    """The memory of the masks that are kept of a file, which must be in proportion to the file."""

    def __init__(self, path: str, num_bytes: int):
        """Begins at nothing; `num_bytes` is the size of the file or of its masks."""
        self._path = path
        self._limit = _SLACK + _GROWTH * num_bytes
        self._total = 0

    def add(self, mask: Rle) -> None:
        """Adds a mask.

        Raises:
            UserError: together they take too much memory; nothing of such a file can be used.
        """
        self._total += len(mask["counts"])
        if self._total > self._limit:
            raise UserError(
                f"{self._path}: its masks unpack to more than {self._limit:,} bytes, "
                f"{_GROWTH} times their text and {_SLACK >> 20} MB"
            )


def decode_mask(text: str, height: int, width: int) -> Rle:
    """Reads base64 of zlib of COCO RLE counts; checked, because pycocotools does not.

    Raises:
        MaskError: it is not such a string, or not of an image of this size.
    """
    try:
        counts = _decompress(
            base64.b64decode(text, validate=True),
            limit=min(_RUN_BYTES * (height * width + 1), _MAX_BYTES),
        )
    except MaskError:
        raise
    except (binascii.Error, ValueError, zlib.error) as error:
        raise MaskError(f"is not base64 of zlib: {error}") from error
    try:
        check_rle(counts, height=height, width=width)
    except ValueError as error:
        raise MaskError(str(error)) from error
    return {"size": [height, width], "counts": counts}


def _decompress(data: bytes, *, limit: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(data, limit + 1)
    if len(found) > limit:
        raise MaskError(f"unpacks to more than the {limit:,} bytes that a mask can have here")
    if not stream.eof:
        raise MaskError("is not base64 of zlib: it is cut off")
    return found


def encode_mask(rle: Rle) -> str:
    """Inverse of `decode_mask`."""
    counts = rle["counts"]
    data = counts.encode() if isinstance(counts, str) else counts
    return base64.b64encode(zlib.compress(data)).decode()
