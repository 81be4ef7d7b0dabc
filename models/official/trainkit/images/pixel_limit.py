"""Refuses images that would take gigabytes to decode, by the sizes in their headers.

A few kilobytes can stand for 2^30 pixels, OpenCV's own limit, and images are decoded 16 at a time.
"""

import re
import struct
from collections.abc import Iterator

from tpudet.trainkit.images.headers import Container, ImageError

MAX_PIXELS = 2**27  # 134 megapixels, 400 MB of RGB

_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TIFF_NUMBERS = {3: "H", 4: "I", 16: "Q"}  # types SHORT, LONG and BigTIFF's LONG8
_SUN_RASTER = b"\x59\xa6\x6a\x95"
# Blanks and comments of any length between numbers, as OpenCV reads them.
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_NETPBM = re.compile(rb"P[1-6fF]" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)")
_PAM = (re.compile(rb"\bHEIGHT\s+(\d+)"), re.compile(rb"\bWIDTH\s+(\d+)"))
_RADIANCE = re.compile(rb"-Y\s+(\d+)\s+\+X\s+(\d+)")


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
        "unknown": _rare_sizes,
    }.get(container)
    if sizes is None:
        return
    try:
        for height, width in sizes(encoded):
            check_size(abs(height), abs(width))
    except (struct.error, OverflowError):
        return  # too short, or a BigTIFF's offset beyond any file


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
        if tag in values and kind in _TIFF_NUMBERS:
            (values[tag],) = struct.unpack_from(order + _TIFF_NUMBERS[kind], encoded, position + 8)
    yield values[_TIFF_HEIGHT], values[_TIFF_WIDTH]


def _big_tiff_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    order = "<" if encoded.startswith(b"II") else ">"
    (directory,) = struct.unpack_from(order + "Q", encoded, 8)
    (count,) = struct.unpack_from(order + "Q", encoded, directory)
    values = {_TIFF_WIDTH: 0, _TIFF_HEIGHT: 0}
    for position in range(directory + 8, min(directory + 8 + 20 * count, len(encoded)), 20):
        tag, kind = struct.unpack_from(order + "HH", encoded, position)
        if tag in values and kind in _TIFF_NUMBERS:
            (values[tag],) = struct.unpack_from(order + _TIFF_NUMBERS[kind], encoded, position + 12)
    yield values[_TIFF_HEIGHT], values[_TIFF_WIDTH]


def _rare_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    """Sizes in the other formats that OpenCV reads: Netpbm, Radiance, Sun raster, BigTIFF."""
    if encoded.startswith((b"II+\x00", b"MM\x00+")):
        yield from _big_tiff_sizes(encoded)
    elif encoded.startswith(_SUN_RASTER):
        width, height = struct.unpack_from(">II", encoded, 4)
        yield height, width
    elif encoded.startswith(b"#?"):
        for found in _RADIANCE.finditer(encoded):
            yield _side(found[1]), _side(found[2])
    elif encoded.startswith(b"P7"):
        height, width = (max(map(_side, side.findall(encoded)), default=0) for side in _PAM)
        yield height, width
    elif found := _NETPBM.match(encoded):
        yield _side(found[2]), _side(found[1])


def _side(digits: bytes) -> int:
    """Python refuses to read thousands of digits; the first twelve are too many already."""
    return int(digits.lstrip(b"0")[:12] or b"0")


def _avif_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    for found in re.finditer(b"ispe", encoded):
        width, height = struct.unpack_from(">II", encoded, found.end() + 4)
        yield height, width


def _jpeg_2000_sizes(encoded: bytes) -> Iterator[tuple[int, int]]:
    start = encoded.find(b"\xff\x4f\xff\x51")
    if start >= 0:
        width, height, left, top = struct.unpack_from(">IIII", encoded, start + 8)
        yield height - top, width - left
