"""Pictures to look at: boxes with labels, ground truth beside detections, grids, thumbnails.

Images are [h, w, 3] uint8 RGB; boxes are [n, 4] pixels of the image, y1 x1 y2 x2. No argument is
drawn upon: every function returns a new image.
"""

import colorsys
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

Colour = tuple[int, int, int]  # red, green, blue in 0..255

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_GAP = 4  # pixels between pictures
_BACKGROUND = 32  # gray level of gaps and captions
_READABLE_SIDE = 480  # pixels; labels on smaller pictures would cover the objects
# Longer side in pixels and JPEG quality of a thumbnail, from the best down to what always fits.
_THUMBNAILS = ((560, 85), (480, 80), (400, 80), (320, 75), (240, 65), (160, 50), (96, 40))
# Colour at full resolution, or thin lines lose theirs.
_FULL_COLOUR = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)


class Panel(NamedTuple):
    """What is drawn on one of several copies of an image."""

    boxes: np.ndarray  # [n, 4] pixels of the image; the first lies on top
    texts: Sequence[str]  # n labels
    colours: Sequence[Colour]  # n
    caption: str


def class_colour(class_id: int) -> Colour:
    """Returns the colour of a class: strong, and far from those of the ids next to it."""
    hue = class_id * (math.sqrt(5) - 1) / 2 % 1.0  # the golden ratio spreads any number of hues
    red, green, blue = colorsys.hsv_to_rgb(hue, 0.85, 1.0)
    return round(red * 255), round(green * 255), round(blue * 255)


def draw_boxes(
    image: np.ndarray, boxes: np.ndarray, texts: Sequence[str], colours: Sequence[Colour]
) -> np.ndarray:
    """Draws boxes with a label each; the first box lies on top, so put the best score first.

    Args:
        image: [h, w, 3] uint8 RGB.
        boxes: [n, 4] pixels, y1 x1 y2 x2; parts outside the image are not seen.
        texts: n labels, drawn above the box or, where there is no room, inside it.
        colours: n colours.

    Raises:
        ValueError: boxes, texts and colours differ in number.
    """
    if not len(boxes) == len(texts) == len(colours):
        raise ValueError(f"{len(boxes)} boxes, {len(texts)} texts, {len(colours)} colours")
    canvas = np.ascontiguousarray(image).copy()
    thickness = max(1, round(min(image.shape[:2]) / 300))
    rows = [tuple(round(float(side)) for side in box) for box in boxes]
    for (y1, x1, y2, x2), colour in zip(reversed(rows), reversed(colours), strict=True):
        cv2.rectangle(canvas, (x1, y1), (x2, y2), colour, thickness)
    # Labels come after all boxes, or a later box would cross them out.
    for (y1, x1, _, _), text, colour in zip(
        reversed(rows), reversed(texts), reversed(colours), strict=True
    ):
        if text:
            _draw_label(canvas, text, y=y1, x=x1, colour=colour)
    return canvas


def draw_comparison(
    image: np.ndarray,
    *,
    truth_boxes: np.ndarray,
    truth_classes: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
    class_names: Sequence[str],
    min_score: float,
    title: str,
) -> np.ndarray:
    """Draws the ground truth (left) beside the detections (right), each under its caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged, so that labels can be read.
        truth_boxes: [n, 4] pixels.
        truth_classes: [n] 1-based; rows of class 0 are padding and left out.
        boxes: [k, 4] pixels, by falling score.
        scores: [k] in 0..1; detections below `min_score` are left out, and the caption says so.
        classes: [k] 1-based; rows of class 0 are padding and left out.
        class_names: C names.
        min_score: in 0..1.
        title: what the picture is, for the left caption.
    """
    is_truth = truth_classes > 0
    is_shown = (classes > 0) & (scores >= min_score)
    hidden = int((classes > 0).sum() - is_shown.sum())
    captions = (
        f"{title}  ground truth: {int(is_truth.sum())}",
        f"detections: {int(is_shown.sum())} of score {min_score:g} or more, {hidden} below",
    )
    panels = []
    for rows, ids, shown_scores, caption in (
        (truth_boxes[is_truth], truth_classes[is_truth], None, captions[0]),
        (boxes[is_shown], classes[is_shown], scores[is_shown], captions[1]),
    ):
        texts = [class_names[int(k) - 1] for k in ids]
        if shown_scores is not None:
            texts = [f"{t} {s:.2f}" for t, s in zip(texts, shown_scores, strict=True)]
        panels.append(Panel(rows, texts, [class_colour(int(k)) for k in ids], caption))
    return draw_panels(image, panels)


def draw_panels(image: np.ndarray, panels: Sequence[Panel]) -> np.ndarray:
    """Draws the image once a panel, side by side, each with its own boxes under its caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged, so that labels can be read.
        panels: at least one.
    """
    factor = max(1.0, _READABLE_SIDE / max(image.shape[:2]))
    if factor > 1:
        image = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
    drawn = [
        add_caption(draw_boxes(image, p.boxes * factor, p.texts, p.colours), p.caption)
        for p in panels
    ]
    return image_grid(drawn, columns=len(drawn))


def add_caption(image: np.ndarray, text: str) -> np.ndarray:
    """Puts a line of text above an image; text that is too long is set smaller, down to half."""
    scale = max(0.5, image.shape[1] / 1600)
    width = cv2.getTextSize(text, _FONT, scale, 1)[0][0]
    scale *= min(1.0, max(0.5, (image.shape[1] - 12) / max(width, 1)))
    height = round(48 * scale)
    bar = np.full((height, image.shape[1], 3), _BACKGROUND, np.uint8)
    cv2.putText(bar, text, (6, round(height * 0.7)), _FONT, scale, (255,) * 3, 1, cv2.LINE_AA)
    return np.concatenate([bar, image])


def image_grid(images: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Lays images out row by row in cells of the largest height and width, gaps between them.

    Raises:
        ValueError: no image, or fewer than one column.
    """
    if not images or columns < 1:
        raise ValueError(f"a grid of {len(images)} images in {columns} columns; both must be >= 1")
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    cell_height = max(image.shape[0] for image in images) + _GAP
    cell_width = max(image.shape[1] for image in images) + _GAP
    shape = (rows * cell_height - _GAP, columns * cell_width - _GAP, 3)
    grid = np.full(shape, _BACKGROUND, np.uint8)
    for i, image in enumerate(images):
        y, x = i // columns * cell_height, i % columns * cell_width
        grid[y : y + image.shape[0], x : x + image.shape[1]] = image
    return grid


def encode_png(image: np.ndarray) -> bytes:
    """Returns the image, [h, w, 3] uint8 RGB, as a PNG file."""
    return cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


def thumbnail_jpeg(
    image: np.ndarray,
    max_bytes: int,
    draw: Callable[[np.ndarray], np.ndarray] = lambda small: small,
) -> tuple[tuple[int, int], bytes]:
    """Makes an image as small as it takes to be a JPEG file of at most so many bytes.

    Args:
        image: [h, w, 3] uint8 RGB.
        max_bytes: the smallest thumbnail, 96 pixels long, is taken even where it has more.
        draw: draws on the small image, so that lines have the width of its pixels.

    Returns:
        Height and width of the thumbnail in pixels, and the JPEG file.
    """
    size, jpeg = image.shape[:2], b""
    for side, quality in _THUMBNAILS:
        factor = min(1.0, side / max(image.shape[:2]))
        size = [max(1, round(length * factor)) for length in image.shape[:2]]
        small = draw(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA))
        options = [cv2.IMWRITE_JPEG_QUALITY, quality, *_FULL_COLOUR]
        jpeg = cv2.imencode(".jpg", cv2.cvtColor(small, cv2.COLOR_RGB2BGR), options)[1].tobytes()
        if len(jpeg) <= max_bytes:
            break
    return (size[0], size[1]), jpeg


def _draw_label(canvas: np.ndarray, text: str, *, y: int, x: int, colour: Colour) -> None:
    """Draws text on a patch of its colour whose lower left corner is at (y, x), kept inside."""
    scale = max(0.4, min(canvas.shape[:2]) / 1500)
    (width, height), baseline = cv2.getTextSize(text, _FONT, scale, 1)
    height += baseline + 2
    top = y - height if y >= height else y
    top = min(max(top, 0), max(canvas.shape[0] - height, 0))
    left = min(max(x, 0), max(canvas.shape[1] - width - 4, 0))
    cv2.rectangle(canvas, (left, top), (left + width + 3, top + height - 1), colour, cv2.FILLED)
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = (0, 0, 0) if luminance > 110 else (255, 255, 255)
    origin = (left + 2, top + height - baseline - 1)
    cv2.putText(canvas, text, origin, _FONT, scale, ink, 1, cv2.LINE_AA)
