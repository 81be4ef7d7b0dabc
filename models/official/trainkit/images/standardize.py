"""Converts any encoded image to upright RGB pixels, or to bytes that TensorFlow decodes.

Colour profiles are not applied and an alpha channel is dropped, as tf.io.decode_image does; of
16-bit samples the upper byte is kept. Of an animation the first frame is used, of several pages the
first.
"""

import struct
from typing import Literal, NamedTuple

import cv2
import numpy as np

from tpudet.trainkit.images.headers import (
    UPRIGHT,
    Container,
    ImageError,
    JpegHeader,
    Orientation,
    PngHeader,
    find_container,
    find_tiff_tag,
    has_more_pages,
    parse_avif_orientation,
    parse_jpeg,
    parse_orientation,
    parse_png,
    with_tag_of_one,
    without_orientation,
)
from tpudet.trainkit.images.opencv_decode import decode_image, decode_with_exif, has_more_frames
from tpudet.trainkit.images.pixel_limit import check_jpeg

__all__ = [
    "ImageError",
    "InspectedImage",
    "StandardImage",
    "decode_rgb",
    "inspect",
    "standardize",
    "standardize_inspected",
    "turn_upright",
]

_JPEG_QUALITY = 95
_TENSORFLOW_JPEG_PROCESSES = (0, 1, 2)  # baseline, extended, progressive
_EXTRA_SAMPLES_TAG, _SAMPLE_FORMAT_TAG = 0x0152, 0x0153  # of TIFF
_SEPARATE_ALPHA = 2  # "unassociated": colours are not multiplied by it
_FLOATING_POINT = 3
_LOSSY_CONTAINERS = frozenset(("JPEG", "AVIF", "JPEG 2000"))
_AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
# One pixel in 64, gray: only entropy decoding, the part that can fail; a third of a full decode.
_PROBE = cv2.IMREAD_REDUCED_GRAYSCALE_8 | cv2.IMREAD_IGNORE_ORIENTATION


class StandardImage(NamedTuple):
    """An image whose bytes TensorFlow decodes to the right pixels with `channels=3`."""

    encoded: bytes
    format: Literal["jpeg", "png"]
    height: int  # pixels, of what TensorFlow decodes
    width: int
    repairs: tuple[str, ...]  # descriptions of the changes; empty if the bytes are unchanged


class InspectedImage(NamedTuple):
    """The properties of an encoded image; `pixels` only if it had to be decoded to find them."""

    container: Container
    height: int  # pixels as stored
    width: int
    orientation: Orientation
    faults: tuple[str, ...]  # reasons why TensorFlow would decode the bytes wrongly
    pixels: np.ndarray | None


def decode_rgb(encoded: bytes) -> np.ndarray:
    """Decodes any image that OpenCV reads.

    Args:
        encoded: the whole file; gray, CMYK, 16-bit, palette and alpha are converted to RGB.

    Returns:
        [h, w, 3] uint8 RGB, the EXIF orientation applied.

    Raises:
        ImageError: the file is empty, truncated, corrupt, in no format that OpenCV reads, or of
            more than `pixel_limit.MAX_PIXELS` pixels.
    """
    image = inspect(encoded)
    return turn_upright(_pixels(encoded, image), image.orientation.value)


def standardize(encoded: bytes, *, check_pixels: bool = True) -> StandardImage:
    """Returns bytes that TensorFlow decodes to the right pixels, upright by the EXIF orientation.

    A complete, upright JPEG (8 bits, gray or three colours) or PNG (8 bits, gray or RGB) is
    returned unchanged. Anything else is re-encoded, as JPEG of quality 95 if the source is lossy,
    else as PNG, and `repairs` says what was changed.

    Args:
        encoded: the whole file.
        check_pixels: see `inspect`.

    Raises:
        ImageError: as `decode_rgb`.
    """
    image = inspect(encoded, check_pixels=check_pixels)
    return standardize_inspected(encoded, image)


def standardize_inspected(encoded: bytes, image: InspectedImage) -> StandardImage:
    """As `standardize`, for an image that `inspect` has already examined."""
    orientation = image.orientation.value
    if image.pixels is None and not image.faults and orientation == 1:
        kind: Literal["jpeg", "png"] = "png" if image.container == "PNG" else "jpeg"
        return StandardImage(encoded, kind, image.height, image.width, ())
    repairs = image.faults
    pixels = _pixels(encoded, image)
    if orientation != 1:
        pixels = turn_upright(pixels, orientation)
        repairs += ("turned upright by its EXIF orientation",)
    lossy = image.container in _LOSSY_CONTAINERS or _is_lossy_webp(encoded)
    return _encode(pixels, lossy=lossy, repairs=repairs)


def inspect(encoded: bytes, *, check_pixels: bool = True) -> InspectedImage:
    """Examines an image and whether TensorFlow decodes its bytes correctly.

    Args:
        encoded: the whole file.
        check_pixels: if False, trusts the header of a JPEG that has its end marker and is of a
            kind that TensorFlow decodes; damage in its compressed data, which a full check decodes
            in 3 ms per megapixel, is then missed. Other images are decoded anyway.

    Raises:
        ImageError: as `decode_rgb`.
    """
    if not encoded:
        raise ImageError("empty file")
    container = find_container(encoded)
    if container == "JPEG":
        jpeg = parse_jpeg(encoded, walk_scans=check_pixels)
        check_jpeg(jpeg)
        faults = _jpeg_faults(jpeg)
        if check_pixels or faults or not (jpeg.has_tables and jpeg.height and jpeg.width):
            decode_image(encoded, _PROBE)
        return InspectedImage(container, jpeg.height, jpeg.width, jpeg.orientation, faults, None)
    if container == "PNG":
        png = parse_png(encoded)
        pixels = decode_image(encoded, _AS_STORED)
        faults = _png_faults(png) + _of_several(encoded, container)
        kept = pixels if faults else None
        return InspectedImage(container, png.height, png.width, png.orientation, faults, kept)
    faults = (f"{container} converted",)
    if container == "TIFF":  # OpenCV turns some of the eight orientations whatever its flags say
        orientation = parse_orientation(encoded, 0, len(encoded))
        pixels, more = _decode_tiff(without_orientation(encoded, orientation))
        faults += more
    else:
        pixels, orientation = _decode_with_orientation(encoded, container)
    faults += _of_several(encoded, container)
    height, width = pixels.shape[:2]
    return InspectedImage(container, height, width, orientation, faults, pixels)


def _decode_tiff(encoded: bytes) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the pixels of a TIFF, and what was changed."""
    extra = find_tiff_tag(encoded, 0, len(encoded), _EXTRA_SAMPLES_TAG)
    if extra and extra.value == _SEPARATE_ALPHA:
        # libtiff would multiply the colours by it; it does not where they are said to be already.
        encoded = with_tag_of_one(encoded, extra)
    kind = find_tiff_tag(encoded, 0, len(encoded), _SAMPLE_FORMAT_TAG)
    if kind and kind.value == _FLOATING_POINT:
        raise ImageError(
            "a TIFF of floating-point samples, whose range is not known: convert it to 8 bits"
        )
    return decode_image(encoded, _AS_STORED), ("alpha channel dropped",) if extra else ()


def _of_several(encoded: bytes, container: Container) -> tuple[str, ...]:
    """Says of an animation or of several pages that the first is taken; nothing of one image."""
    if container == "TIFF":
        return ("first of several pages",) if has_more_pages(encoded) else ()
    if container == "GIF":  # its frames are counted by decoding them
        several = has_more_frames(encoded)
    elif container == "PNG":
        several = b"acTL" in encoded[: max(encoded.find(b"IDAT"), 0)]
    elif container == "WebP":
        several = encoded[12:16] == b"VP8X" and bool(encoded[20] & 2)
    else:
        several = container == "AVIF" and encoded[8:12] == b"avis"
    return ("first frame of an animation",) if several else ()


def _jpeg_faults(header: JpegHeader) -> tuple[str, ...]:
    faults = []
    if header.bits != 8:
        faults.append(f"{header.bits}-bit JPEG reduced to 8 bits")
    if header.channels == 4:
        faults.append("CMYK JPEG converted to RGB")
    elif header.channels not in (1, 3):
        faults.append(f"JPEG of {header.channels} channels converted to RGB")
    if header.process not in _TENSORFLOW_JPEG_PROCESSES:
        faults.append("JPEG of a rare coding re-encoded")
    return tuple(faults)


def _png_faults(header: PngHeader) -> tuple[str, ...]:
    faults = []
    if header.bits == 16:
        faults.append("16-bit PNG reduced to 8 bits")
    elif header.bits != 8 and header.color_type == 0:
        faults.append(f"{header.bits}-bit PNG widened to 8 bits")
    if header.color_type == 3:
        faults.append("palette PNG converted to RGB")
    elif header.color_type in (4, 6) or header.transparent_color:
        faults.append("alpha channel dropped")
    return tuple(faults)


def _decode_with_orientation(
    encoded: bytes, container: Container
) -> tuple[np.ndarray, Orientation]:
    """Returns the pixels as stored, and the orientation: an AVIF's own, or of the EXIF data."""
    pixels, exif = decode_with_exif(encoded, _AS_STORED)
    orientation = parse_avif_orientation(encoded) if container == "AVIF" else UPRIGHT
    if exif is not None and orientation == UPRIGHT:
        start = 6 if exif.startswith(b"Exif\x00\x00") else 0
        orientation = parse_orientation(exif, start, len(exif))
    return pixels, orientation


def _pixels(encoded: bytes, image: InspectedImage) -> np.ndarray:
    return decode_image(encoded, _AS_STORED) if image.pixels is None else image.pixels


def turn_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotates and mirrors [h, w, ...] pixels by the orientation (EXIF 2.3, table 6)."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _is_lossy_webp(encoded: bytes) -> bool:
    """Whether the first frame of a WebP is lossy; profiles and metadata may stand before it."""
    position = 12
    while find_container(encoded) == "WebP" and position + 8 <= len(encoded):
        kind, size = struct.unpack_from("<4sI", encoded, position)
        if kind in (b"VP8 ", b"VP8L"):
            return kind == b"VP8 "
        # Chunks have an even length; a frame of an animation holds its own, after 16 bytes.
        position += 24 if kind == b"ANMF" else 8 + size + size % 2
    return False


def _encode(pixels: np.ndarray, *, lossy: bool, repairs: tuple[str, ...]) -> StandardImage:
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if lossy else []
    done, encoded = cv2.imencode(".jpg" if lossy else ".png", bgr, options)
    if not done:
        raise ImageError(f"cannot be re-encoded: {pixels.shape[1]}x{pixels.shape[0]} pixels")
    height, width = pixels.shape[:2]
    return StandardImage(encoded.tobytes(), "jpeg" if lossy else "png", height, width, repairs)
