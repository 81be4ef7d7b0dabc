"""Refuses images that would take gigabytes to decode, by the sizes in their headers.

Images of too many passes over their pixels, or of too much compressed metadata, likewise. A few
kilobytes can stand for 2^30 pixels, OpenCV's own limit, and images are decoded 16 at a time.
Where a header leaves open which size a decoder would take, the image is refused too.
"""

import re
import struct
from collections.abc import Callable, Iterator

from tpudet.trainkit.images.avif_sizes import avif_sizes
from tpudet.trainkit.images.headers import (
    Container,
    ImageError,
    JpegHeader,
    find_container,
    parse_jpeg,
)
from tpudet.trainkit.images.iso_boxes import boxes
from tpudet.trainkit.images.png_metadata import inflates_beyond

MAX_PIXELS = 2**27  # 134 megapixels, 400 MB of RGB
# Bytes of memory that decoding takes for a pixel, rounded: 1 GB in all. 6 to 9 as a rule; the
# decoders of GIF and AVIF were measured to take 21 and 17, those of animations 11 to 15.
_COST, _GIF_COST, _AVIF_COST, _ANIMATION_COST = 8, 24, 16, 16
# Blocks of 8 x 8 pixels times scans: 32 scans of the largest image, of which libjpeg writes 10.
MAX_SCANNED_BLOCKS = 2**26
_MAX_METADATA = 2**26  # bytes
MAX_GIF_PIXELS = MAX_PIXELS * _COST // _GIF_COST

_TIFF_SIDES = {256: "width", 257: "height", 322: "tile width", 323: "tile height"}
# The types of integers that libtiff takes; those of 8 bytes stand in the entry of a BigTIFF only.
_TIFF_INTEGERS = {1: "B", 6: "b", 3: "H", 8: "h", 4: "I", 9: "i"}
_BIG_TIFF_INTEGERS = _TIFF_INTEGERS | {16: "Q", 17: "q"}
_BIG_TIFF = (b"II+\x00", b"MM\x00+")
_SUN_RASTER = b"\x59\xa6\x6a\x95"
# Blanks and comments of any length between numbers, as OpenCV reads them.
_GAP = rb"(?:\s|#[^\r\n]*[\r\n])+"
_NETPBM = re.compile(rb"P[1-6fF]" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)")
_PAM = (re.compile(rb"HEIGHT\s+(\d+)"), re.compile(rb"WIDTH\s+(\d+)"))
_RADIANCE = re.compile(rb"-Y\s*\+?(\d+)\s*\+X\s*\+?(\d+)")  # as sscanf reads "-Y %d +X %d"
_CODE_STREAM = b"\xff\x4f\xff\x51"  # of JPEG 2000: its start, then the marker of the size

_Sizes = Iterator[tuple[int, int]]  # height, width


def check_size(height: int, width: int) -> None:
    """Raises ImageError for more than `MAX_PIXELS` pixels."""
    _check(height, width, MAX_PIXELS)


def check_jpeg(header: JpegHeader) -> None:
    """As `check_size`, and for more scans than are decoded: each passes over all pixels."""
    check_size(header.height, header.width)
    blocks = -(-header.height // 8) * -(-header.width // 8)
    if blocks * header.scans > MAX_SCANNED_BLOCKS:
        raise ImageError(
            f"a JPEG of {header.scans:,} scans: at most {MAX_SCANNED_BLOCKS // blocks:,} of "
            f"{header.width} x {header.height} pixels are decoded; save the image again"
        )


def check_header(encoded: bytes) -> None:
    """As `check_size`, for every size that a file's header states.

    GIF, AVIF, JPEG 2000 and animations may have fewer pixels, because their decoders take more
    memory for each. The scans of a JPEG and the compressed metadata of a PNG have a limit too.

    Raises:
        ImageError: the image has more of these than are decoded, or its header states no size that
            is understood.
    """
    container = find_container(encoded)
    try:
        sizes, cost = list(_SIZES[container](encoded)), _cost(encoded, container)
    except (struct.error, OverflowError):  # too short, or an offset beyond any file
        sizes, cost = [], _COST
    if not sizes or min(map(min, sizes)) < 1:
        raise unreadable(container)
    for height, width in sizes:
        _check(height, width, MAX_PIXELS * _COST // cost)


def unreadable(container: Container) -> ImageError:
    """Returns the error of an image that cannot be decoded."""
    what = "in no known image format" if container == "unknown" else f"a broken {container}"
    return ImageError(f"unreadable: {what}")


def _check(height: int, width: int, limit: int) -> None:
    if height * width > limit:
        raise ImageError(
            f"{width} x {height} pixels are too many: at most {limit:,} are decoded; make the "
            "image smaller"
        )


def _cost(encoded: bytes, container: Container) -> int:
    """Bytes of memory for a pixel."""
    if container == "JPEG 2000":  # OpenJPEG takes 4 per sample, OpenCV up to 4 per pixel
        (components,) = struct.unpack_from(">H", encoded, _code_stream(encoded) + 40)
        return 4 * components + 4
    if container == "GIF":
        return _GIF_COST
    if container == "AVIF":
        return _AVIF_COST
    is_animation = (container == "PNG" and b"acTL" in encoded) or (
        container == "WebP" and encoded[12:16] == b"VP8X" and bool(encoded[20] & 2)
    )
    return _ANIMATION_COST if is_animation else _COST


def _jpeg_sizes(encoded: bytes) -> _Sizes:
    header = parse_jpeg(encoded, walk_scans=False)
    check_jpeg(header)
    yield header.height, header.width


def _png_sizes(encoded: bytes) -> _Sizes:
    kind, width, height = struct.unpack_from(">4sII", encoded, 12)
    if kind == b"IHDR":
        yield height, width
    if inflates_beyond(encoded, _MAX_METADATA):
        raise ImageError(
            f"a PNG whose text chunks and colour profile inflate to more than "
            f"{_MAX_METADATA >> 20} MB: save the image without them"
        )


def _gif_sizes(encoded: bytes) -> _Sizes:
    width, height = struct.unpack_from("<HH", encoded, 6)
    yield height, width


def _bmp_sizes(encoded: bytes) -> _Sizes:
    (header_size,) = struct.unpack_from("<I", encoded, 14)
    width, height = struct.unpack_from("<HH" if header_size == 12 else "<ii", encoded, 18)
    yield abs(height), width  # a negative height means rows from the top


def _webp_sizes(encoded: bytes) -> _Sizes:
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


def _tiff_sizes(encoded: bytes) -> _Sizes:
    """Sizes of the first image of a TIFF or BigTIFF, and of its tiles; none if they are repeated.

    Decoders differ in which of two values they take.
    """
    order = "<" if encoded.startswith(b"II") else ">"
    is_big = encoded.startswith(_BIG_TIFF)
    integers = _BIG_TIFF_INTEGERS if is_big else _TIFF_INTEGERS
    offset, count, entry_size = ("Q", "Q", 20) if is_big else ("I", "H", 12)
    (directory,) = struct.unpack_from(order + offset, encoded, 8 if is_big else 4)
    (num_entries,) = struct.unpack_from(order + count, encoded, directory)
    start = directory + struct.calcsize(count)
    end = min(start + entry_size * num_entries, len(encoded))
    values: dict[str, int] = {}
    for position in range(start, end, entry_size):
        tag, kind = struct.unpack_from(order + "HH", encoded, position)
        side = _TIFF_SIDES.get(tag)
        if side is None:
            continue
        if side in values or kind not in integers:
            return
        value = position + (12 if is_big else 8)
        (values[side],) = struct.unpack_from(order + integers[kind], encoded, value)
    yield values.get("height", 0), values.get("width", 0)
    if "tile height" in values or "tile width" in values:
        yield values.get("tile height", 0), values.get("tile width", 0)


def _rare_sizes(encoded: bytes) -> _Sizes:
    """Sizes in the other formats that OpenCV reads: Netpbm, Radiance, Sun raster, BigTIFF."""
    if encoded.startswith(_BIG_TIFF):
        yield from _tiff_sizes(encoded)
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


def _jpeg_2000_sizes(encoded: bytes) -> _Sizes:
    start = _code_stream(encoded)
    if encoded.startswith(_CODE_STREAM, start):
        width, height, left, top = struct.unpack_from(">IIII", encoded, start + 8)
        yield height - top, width - left


def _code_stream(encoded: bytes) -> int:
    """Returns where the code stream of a JPEG 2000 that is decoded starts; its end without one."""
    if encoded.startswith(_CODE_STREAM):
        return 0
    starts = (start for kind, start, _ in boxes(encoded) if kind == b"jp2c")
    return next(starts, len(encoded))


_SIZES: dict[Container, Callable[[bytes], _Sizes]] = {
    "JPEG": _jpeg_sizes,
    "PNG": _png_sizes,
    "GIF": _gif_sizes,
    "BMP": _bmp_sizes,
    "WebP": _webp_sizes,
    "TIFF": _tiff_sizes,
    "AVIF": avif_sizes,
    "JPEG 2000": _jpeg_2000_sizes,
    "unknown": _rare_sizes,
}
