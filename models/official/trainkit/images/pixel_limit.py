"""Refuses images that would take gigabytes to decode, by the sizes in their headers.

A few kilobytes can stand for 2^30 pixels, OpenCV's own limit, and images are decoded 16 at a time.
"""

import re
import struct
from collections.abc import Iterator

from tpudet.trainkit.images.headers import Container, ImageError

MAX_PIXELS = 2**27  # 134 megapixels, 400 MB of RGB

_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_SHORT, _TIFF_LONG = 3, 4


def check_size(height: int, width: int) -> None:
    """Raises ImageError for more than `MAX_PIXELS` pixels."""
    if height * width > MAX_PIXELS:
        raise ImageError(
            f"{width} x {height} pixels are too many: at most {MAX_PIXELS:,} are decoded; make "
            "the image smaller"
        )


def check_encoded_size(encoded: bytes, container: Container) -> None:
    """As `check_size`, for every size that a file's header states.

    JPEG and PNG have parsers of their own; a size that is not understood is left to the decoder.
    """
    sizes = {
        "GIF": _gif_sizes,
        "BMP": _bmp_sizes,
        "WebP": _webp_sizes,
        "TIFF": _tiff_sizes,
        "AVIF": _avif_sizes,
        "JPEG 2000": _jpeg_2000_sizes,
    }.get(container)
    if sizes is None:
        return
    try:
        for height, width in sizes(encoded):
            check_size(abs(height), abs(width))
    except struct.error:
        return  # too short


def _gif_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    width, height = struct.unpack_from("<HH", encoded, 6)
    yield height, width


def _bmp_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    (header_size,) = struct.unpack_from("<I", encoded, 14)
    width, height = struct.unpack_from("<HH" if header_size == 12 else "<ii", encoded, 18)
    yield height, width  # a negative height means rows from the top


def _webp_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    kind = encoded[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(encoded[i : i + 3], "little") + 1 for i in (24, 27))
        yield height, width
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", encoded, 21)
        yield (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", encoded, 26)
        yield height & 0x3FFF, width & 0x3FFF


def _tiff_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    order = "<" if encoded.startswith(b"II") else ">"
    (directory,) = struct.unpack_from(order + "I", encoded, 4)
    (count,) = struct.unpack_from(order + "H", encoded, directory)
    values = {_TIFF_WIDTH: 0, _TIFF_HEIGHT: 0}
    for position in range(directory + 2, directory + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(order + "HH", encoded, position)
        if tag in values and kind in (_TIFF_SHORT, _TIFF_LONG):
            letter = "H" if kind == _TIFF_SHORT else "I"
            (values[tag],) = struct.unpack_from(order + letter, encoded, position + 8)
    yield values[_TIFF_HEIGHT], values[_TIFF_WIDTH]


def _avif_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    for found in re.finditer(b"ispe", encoded):
        width, height = struct.unpack_from(">II", encoded, found.end() + 4)
        yield height, width


def _jpeg_2000_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    start = encoded.find(b"\xff\x4f\xff\x51")
    if start >= 0:
        width, height, left, top = struct.unpack_from(">IIII", encoded, start + 8)
        yield height - top, width - left
