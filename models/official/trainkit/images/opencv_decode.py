"""Decodes images with OpenCV after a check of the size that their header states.

The only place that calls OpenCV's decoders: a few kilobytes can stand for gigabytes of pixels.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import numpy as np

from tpudet.trainkit.images.headers import ImageError, find_container
from tpudet.trainkit.images.pixel_limit import check_header, unreadable

# Not reduced to 8 bits, nor to gray: values below 256, or a little blue, would become 0.
_MASK = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH


def decode_image(encoded: bytes, flags: int) -> np.ndarray:
    """Decodes an image with `cv2.imdecode`.

    Args:
        encoded: the whole file.
        flags: OpenCV's, of `IMREAD_...`.

    Raises:
        ImageError: it is in no format that OpenCV reads or broken, its header states no size, or
            one of more than `pixel_limit.MAX_PIXELS` pixels.
    """
    check_header(encoded)
    with _errors_in_words():
        pixels = cv2.imdecode(np.frombuffer(encoded, np.uint8), flags)
    return _require_pixels(pixels, encoded)


def decode_mask_image(encoded: bytes) -> np.ndarray:
    """Decodes a mask of 8 or 16 bits, [h, w] bool, any value above 0 being inside, in any colour.

    An alpha channel does not count.

    Raises:
        ImageError: as `decode_image`.
    """
    pixels = decode_image(encoded, _MASK)
    return pixels > 0 if pixels.ndim == 2 else np.asarray(pixels.any(axis=-1))


def decode_fitting_mask(encoded: bytes, size: tuple[int, ...]) -> np.ndarray | None:
    """As `decode_mask_image`; None if it cannot be decoded, or is not of this height and width."""
    try:
        mask = decode_mask_image(encoded)
    except ImageError:
        return None
    return mask if mask.shape == size else None


def decode_with_exif(encoded: bytes, flags: int) -> tuple[np.ndarray, bytes | None]:
    """As `decode_image`; returns the EXIF data too, None if there are none."""
    check_header(encoded)
    with _errors_in_words():
        pixels, kinds, metadata = cv2.imdecodeWithMetadata(
            np.frombuffer(encoded, np.uint8), flags=flags
        )
    blocks = zip(kinds, metadata, strict=True)
    exif = [blob for kind, blob in blocks if kind == cv2.IMAGE_METADATA_EXIF]
    found = bytes(np.asarray(exif[0], np.uint8).ravel()) if exif else None
    return _require_pixels(pixels, encoded), found


def has_more_frames(encoded: bytes) -> bool:
    """Whether an image is an animation of two frames or more, which are decoded to count them.

    Raises:
        ImageError: as `decode_image`.
    """
    check_header(encoded)
    with _errors_in_words():
        _, animation = cv2.imdecodeanimation(np.frombuffer(encoded, np.uint8), start=0, count=2)
    return len(animation.frames) > 1


@contextmanager
def _errors_in_words() -> Iterator[None]:
    """Turns OpenCV's errors into `ImageError`, without its own lines on stderr."""
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        yield
    except cv2.error as error:
        raise ImageError(f"unreadable: OpenCV says {error.err or 'nothing more'}") from error
    finally:
        cv2.utils.logging.setLogLevel(level)


def _require_pixels(pixels: np.ndarray | None, encoded: bytes) -> np.ndarray:
    if pixels is None or pixels.size == 0:
        raise unreadable(find_container(encoded))
    return pixels
