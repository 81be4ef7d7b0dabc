"""Draws labelled boxes on images, and detections beside their ground truth.

Images are [h, w, 3] uint8 RGB; boxes are [n, 4] pixels of the image, y1 x1 y2 x2. Every function
returns a new image; no argument is changed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from tpudet.trainkit.pages.drawing import FONT, Colour, add_caption, class_colour, image_grid

_READABLE_SIDE = 480  # pixels; labels on smaller images would cover the objects
_MASK_OPACITY = 0.35


class Panel(NamedTuple):
    """The boxes of one of several copies of an image."""

    boxes: np.ndarray  # [n, 4] pixels of the image; the first is drawn on top
    texts: Sequence[str]  # n labels
    colours: Sequence[Colour]  # n
    caption: str


def draw_boxes(
    image: np.ndarray, boxes: np.ndarray, texts: Sequence[str], colours: Sequence[Colour]
) -> np.ndarray:
    """Draws boxes with labels; the first box is on top, so put the highest score first.

    Args:
        image: [h, w, 3] uint8 RGB.
        boxes: [n, 4] pixels; parts outside the image are cut off.
        texts: n labels, drawn above the box or, for lack of room, inside it; "" draws none.
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
    # Labels follow all boxes, so that no box crosses them out.
    for (y1, x1, _, _), text, colour in zip(
        reversed(rows), reversed(texts), reversed(colours), strict=True
    ):
        if text:
            _draw_label(canvas, text, y=y1, x=x1, colour=colour)
    return canvas


def fill_masks(
    image: np.ndarray, masks: Sequence[np.ndarray], colours: Sequence[Colour]
) -> np.ndarray:
    """Blends a colour over each mask, [h, w] bool; the first mask is on top."""
    filled = image.astype(np.float32) if len(masks) else image
    for mask, colour in zip(reversed(masks), reversed(colours), strict=True):
        filled[mask] += _MASK_OPACITY * (np.array(colour, np.float32) - filled[mask])
    return np.round(filled).astype(np.uint8) if len(masks) else image


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
    """Draws the ground truth (left) and the detections (right), each with a caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged to keep labels readable.
        truth_boxes: [n, 4] pixels.
        truth_classes: [n] 1-based; 0 is padding.
        boxes: [k, 4] pixels, by descending score.
        scores: [k] in 0..1; the caption counts detections below `min_score`, which are not drawn.
        classes: [k] 1-based; 0 is padding.
        class_names: C names.
        min_score: in 0..1.
        title: start of the left caption.
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
    """Draws the image once per panel, side by side, each with its boxes and caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged to keep labels readable.
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


def _draw_label(canvas: np.ndarray, text: str, *, y: int, x: int, colour: Colour) -> None:
    """Draws text on a coloured patch, its lower left corner at (y, x), moved into the image."""
    scale = max(0.4, min(canvas.shape[:2]) / 1500)
    (width, height), baseline = cv2.getTextSize(text, FONT, scale, 1)
    height += baseline + 2
    top = y - height if y >= height else y
    top = min(max(top, 0), max(canvas.shape[0] - height, 0))
    left = min(max(x, 0), max(canvas.shape[1] - width - 4, 0))
    cv2.rectangle(canvas, (left, top), (left + width + 3, top + height - 1), colour, cv2.FILLED)
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = (0, 0, 0) if luminance > 110 else (255, 255, 255)
    origin = (left + 2, top + height - baseline - 1)
    cv2.putText(canvas, text, origin, FONT, scale, ink, 1, cv2.LINE_AA)
