"""Drawing basics: class colours, captions, grids of images, thumbnails.

Images are [h, w, 3] uint8 RGB. Every function returns a new image; no argument is changed.
"""

import colorsys
import math
import zlib
from collections.abc import Callable, Sequence

import cv2
import numpy as np

Colour = tuple[int, int, int]  # red, green, blue in 0..255

FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP = 4  # pixels between images
_BACKGROUND = 244  # gray level of gaps and captions: dark ones weigh more than the images
_INK = (32,) * 3
# Longer side in pixels and JPEG quality of thumbnails, best first.
_THUMBNAILS = ((560, 85), (480, 80), (400, 80), (320, 75), (240, 65), (160, 50), (96, 40))
_PNG_HEADER = 33  # bytes: the signature, and the chunk that comes first
# Colour at full resolution: with chroma subsampling thin lines lose theirs.
_FULL_COLOUR = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)


def class_colour(class_id: int) -> Colour:
    """Returns a saturated colour for a class, far from the colours of neighbouring ids."""
    hue = class_id * (math.sqrt(5) - 1) / 2 % 1.0  # the golden ratio spreads any number of hues
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)


def add_caption(image: np.ndarray, text: str) -> np.ndarray:
    """Adds a line of text above an image; long text is shrunk, at most by half."""
    scale = max(0.5, image.shape[1] / 1600)
    width = cv2.getTextSize(text, FONT, scale, 1)[0][0]
    scale *= min(1.0, max(0.5, (image.shape[1] - 12) / max(width, 1)))
    height = round(48 * scale)
    bar = np.full((height, image.shape[1], 3), _BACKGROUND, np.uint8)
    cv2.putText(bar, text, (6, round(height * 0.7)), FONT, scale, _INK, 1, cv2.LINE_AA)
    return np.concatenate([bar, image])


def image_grid(images: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Arranges images row by row, with gaps; a row is as high and a column as wide as its largest.

    Raises:
        ValueError: no image, or no column.
    """
    if not images or columns < 1:
        raise ValueError(f"a grid of {len(images)} images in {columns} columns; both must be >= 1")
    columns = min(columns, len(images))
    heights = [
        max(image.shape[0] for image in images[first : first + columns])
        for first in range(0, len(images), columns)
    ]
    widths = [max(image.shape[1] for image in images[column::columns]) for column in range(columns)]
    tops, lefts = (np.cumsum([0, *(side + _GAP for side in sides)]) for sides in (heights, widths))
    grid = np.full((tops[-1] - _GAP, lefts[-1] - _GAP, 3), _BACKGROUND, np.uint8)
    for i, image in enumerate(images):
        y, x = tops[i // columns], lefts[i % columns]
        grid[y : y + image.shape[0], x : x + image.shape[1]] = image
    return grid


def encode_png(image: np.ndarray) -> bytes:
    """Encodes an image as a PNG file, which says that tpudet made it."""
    png = cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()
    text = b"tEXtSoftware\0tpudet"
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    return png[:_PNG_HEADER] + chunk + png[_PNG_HEADER:]


def thumbnail_jpeg(
    image: np.ndarray,
    max_bytes: int,
    draw: Callable[[np.ndarray], np.ndarray] = lambda small: small,
) -> tuple[tuple[int, int], bytes]:
    """Shrinks an image until it is a JPEG file of at most `max_bytes`.

    Args:
        image: [h, w, 3] uint8 RGB.
        max_bytes: limit; the smallest thumbnail, 96 pixels long, is returned even if it has more.
        draw: draws on the shrunk image, so that line widths are in its pixels.

    Returns:
        Height and width of the thumbnail in pixels, and the JPEG file.
    """
    size, jpeg = image.shape[:2], b""
    for side, quality in _THUMBNAILS:
        size, jpeg = shrunk_jpeg(image, side, quality=quality, draw=draw)
        if len(jpeg) <= max_bytes:
            break
    return size, jpeg


def shrunk_jpeg(
    image: np.ndarray,
    max_side: int,
    *,
    quality: int = 85,
    draw: Callable[[np.ndarray], np.ndarray] = lambda small: small,
) -> tuple[tuple[int, int], bytes]:
    """Encodes an image as a JPEG file, its longer side at most `max_side` pixels.

    Args:
        image: [h, w, 3] uint8 RGB.
        max_side: pixels.
        quality: of the JPEG, 1..100.
        draw: as of `thumbnail_jpeg`.

    Returns:
        Height and width in pixels, and the file.
    """
    factor = min(1.0, max_side / max(image.shape[:2]))
    height, width = (max(1, round(length * factor)) for length in image.shape[:2])
    small = draw(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, *_FULL_COLOUR]
    jpeg = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), options)[1].tobytes()
    return (height, width), jpeg
