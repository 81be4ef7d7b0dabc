"""Draws labelled boxes and masks on images, and detections beside their ground truth.

Images are [h, w, 3] uint8 RGB; boxes are [n, 4] pixels of the image, y1 x1 y2 x2. Every function
returns a new image; no argument is changed.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import cv2
import numpy as np

from tpudet.detection.ops.numpy_masks import paste_mask
from tpudet.trainkit.pages.drawing import FONT, Colour, add_caption, class_colour, image_grid

_READABLE_SIDE = 480  # pixels; labels on smaller images would cover the objects
_MASK_OPACITY = 0.35

_Box = tuple[int, int, int, int]  # y1 x1 y2 x2


class _Label(NamedTuple):
    text: str
    box: _Box
    colour: Colour


class Panel(NamedTuple):
    """The boxes and masks of one of several copies of an image."""

    boxes: np.ndarray  # [n, 4] pixels of the image; the first is drawn on top
    texts: Sequence[str]  # n labels
    colours: Sequence[Colour]  # n
    caption: str
    # n, [h, w] bool each, of the image's size; or none
    masks: Sequence[np.ndarray] | np.ndarray = ()


def draw_boxes(
    image: np.ndarray, boxes: np.ndarray, texts: Sequence[str], colours: Sequence[Colour]
) -> np.ndarray:
    """Draws boxes with labels; the first box is on top, so put the highest score first.

    Args:
        image: [h, w, 3] uint8 RGB.
        boxes: [n, 4] pixels; parts outside the image are cut off.
        texts: n labels, above their box or, for lack of room, around it; left out where each place
            would hide a part of an earlier one. "" draws none.
        colours: n colours.

    Raises:
        ValueError: boxes, texts and colours differ in number.
    """
    if not len(boxes) == len(texts) == len(colours):
        raise ValueError(f"{len(boxes)} boxes, {len(texts)} texts, {len(colours)} colours")
    canvas = np.ascontiguousarray(image).copy()
    # Two pixels at least: one is lost where a viewer shrinks the image.
    thickness = max(2, round(sum(image.shape[:2]) / 700))
    # OpenCV counts in 32 bits; a corner beyond the image by its whole side is as far as any other.
    ends = np.tile(image.shape[:2], 2)
    rows = [_rounded(box) for box in np.clip(boxes, -ends, 2 * ends)]
    for (y1, x1, y2, x2), colour in zip(reversed(rows), reversed(colours), strict=True):
        cv2.rectangle(canvas, (x1, y1), (x2, y2), colour, thickness)
    # Labels follow all boxes, so that no box crosses them out; the first chooses its place first.
    labels = [
        _Label(text, row, colour)
        for text, row, colour in zip(texts, rows, colours, strict=True)
        if text
    ]
    scale = max(0.4, min(image.shape[:2]) / 1500)
    places = _place_labels(
        [(label.box, _label_size(label.text, scale)) for label in labels], image.shape[:2]
    )
    for label, place in zip(labels, places, strict=True):
        if place is not None:
            top, left = place
            _draw_label(canvas, label.text, top=top, left=left, scale=scale, colour=label.colour)
    return canvas


def draw_masks(image: np.ndarray, masks: Iterable[tuple[np.ndarray, Colour]]) -> np.ndarray:
    """Blends a colour over each mask and draws its outline; the last mask is on top.

    Args:
        image: [h, w, 3] uint8 RGB.
        masks: [h, w] bool each, with its colour; used one after another, so that they may be
            decoded on the way.
    """
    drawn = np.ascontiguousarray(image).copy()
    thickness = max(1, round(min(image.shape[:2]) / 400))
    for mask, colour in masks:
        inside = drawn[mask]
        blended = inside + _MASK_OPACITY * (np.array(colour, np.float32) - inside)
        drawn[mask] = np.round(blended).astype(np.uint8)
        outlines, _ = cv2.findContours(
            mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE
        )
        cv2.drawContours(drawn, outlines, -1, colour, thickness)
    return drawn


def draw_comparison(
    image: np.ndarray,
    *,
    truth_boxes: np.ndarray,
    truth_classes: np.ndarray,
    truth_masks: Sequence[np.ndarray] | None = None,
    boxes: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
    masks: np.ndarray | None = None,
    class_names: Sequence[str],
    min_score: float,
    title: str,
) -> np.ndarray:
    """Draws the ground truth (left) and the detections (right), each with a caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged to keep labels readable.
        truth_boxes: [n, 4] pixels.
        truth_classes: [n] 1-based; 0 is padding.
        truth_masks: n masks [h, w] bool.
        boxes: [k, 4] pixels, by descending score.
        scores: [k] in 0..1; the caption counts detections below `min_score`, which are not drawn.
        classes: [k] 1-based; 0 is padding.
        masks: [k, M, M] in 0..1, over the boxes.
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
    shown_masks: list[Sequence[np.ndarray]] = [[], []]
    if truth_masks is not None:
        shown_masks[0] = [truth_masks[row] for row in np.flatnonzero(is_truth).tolist()]
    if masks is not None:
        height, width = image.shape[:2]
        shown_masks[1] = [
            paste_mask(mask, box, height=height, width=width)
            for mask, box in zip(masks[is_shown], boxes[is_shown], strict=True)
        ]
    for rows, ids, shown_scores, caption, own_masks in (
        (truth_boxes[is_truth], truth_classes[is_truth], None, captions[0], shown_masks[0]),
        (boxes[is_shown], classes[is_shown], scores[is_shown], captions[1], shown_masks[1]),
    ):
        texts = [class_names[int(k) - 1] for k in ids]
        if shown_scores is not None:
            texts = [f"{t} {s:.2f}" for t, s in zip(texts, shown_scores, strict=True)]
        colours = [class_colour(int(k)) for k in ids]
        panels.append(Panel(rows, texts, colours, caption, own_masks))
    return draw_panels(image, panels)


def draw_panels(image: np.ndarray, panels: Sequence[Panel]) -> np.ndarray:
    """Draws the image once per panel, side by side, each with its masks, boxes and caption.

    Args:
        image: [h, w, 3] uint8 RGB; a small one is enlarged to keep labels readable.
        panels: at least one.
    """
    factor = max(1.0, _READABLE_SIDE / max(image.shape[:2]))
    enlarged = _enlarge(image, factor, cv2.INTER_LINEAR)
    drawn = []
    for panel in panels:
        canvas = enlarged
        if len(panel.masks):
            masks = (_enlarge(mask, factor, cv2.INTER_NEAREST) for mask in reversed(panel.masks))
            canvas = draw_masks(enlarged, zip(masks, reversed(panel.colours), strict=True))
        canvas = draw_boxes(canvas, panel.boxes * factor, panel.texts, panel.colours)
        drawn.append(add_caption(canvas, panel.caption))
    return image_grid(drawn, columns=len(drawn))


def _enlarge(layer: np.ndarray, factor: float, interpolation: int) -> np.ndarray:
    """Resizes an image or a mask; the same where the factor is 1."""
    if factor == 1:
        return layer
    pixels = layer.view(np.uint8)  # OpenCV does not take bool
    return cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=interpolation).view(
        layer.dtype
    )


def _rounded(box: np.ndarray) -> _Box:
    y1, x1, y2, x2 = (round(float(side)) for side in box)
    return y1, x1, y2, x2


def _label_size(text: str, scale: float) -> tuple[int, int]:
    """Height and width of a label in pixels."""
    (width, height), baseline = cv2.getTextSize(text, FONT, scale, 1)
    return height + baseline + 2, width + 4


def _place_labels(
    labels: Sequence[tuple[_Box, tuple[int, int]]], image_size: tuple[int, ...]
) -> list[tuple[int, int] | None]:
    """Top left corners of labels: above their box, or where there is room around it.

    Args:
        labels: box, and height and width of its label; the most important first.
        image_size: height and width, which no label leaves.

    Returns:
        The corners; None where each place would hide a part of an earlier label.
    """
    taken = np.zeros((0, 4))
    corners: list[tuple[int, int] | None] = []
    for box, size in labels:
        limits = np.maximum(np.subtract(image_size[:2], size), 0)
        places = np.clip(_label_places(box, size), 0, limits)
        patches = np.concatenate([places, places + size], axis=1)
        starts = np.maximum(patches[:, None, :2], taken[None, :, :2])
        ends = np.minimum(patches[:, None, 2:], taken[None, :, 2:])
        is_free = ~(ends > starts).all(axis=-1).any(axis=-1)
        if not is_free.any():
            corners.append(None)
            continue
        best = int(is_free.argmax())
        taken = np.concatenate([taken, patches[best : best + 1]])
        corners.append((int(places[best, 0]), int(places[best, 1])))
    return corners


def _label_places(box: _Box, size: tuple[int, int]) -> np.ndarray:
    """[n, 2] top left corners of a label, the best first: all but the last few touch the box."""
    (y1, x1, y2, x2), (height, width) = box, size
    above, below, end, middle = y1 - height, y2 + 1, x2 - width + 1, (x1 + x2 - width) // 2
    outside = [(above, x1)] if above >= 0 else []
    at_corners = [(y1, x1), (above, end), (below, x1), (y1, end), (y2 - height, x1)]
    at_corners += [(below, end), (y2 - height, end)]
    at_sides = [(y, x) for x in (middle, x1 - width, x2 + 1) for y in (above, y1, below)]
    rows = range(y1 + height, y2 - 2 * height, height)
    at_sides += [(y, x) for y in rows for x in (x1, end, x1 - width, x2 + 1)]
    near = [(above - height, x) for x in (x1, end)] + [(below + height, x) for x in (x1, end)]
    return np.array([*outside, *at_corners, *at_sides, *near])


def _draw_label(
    canvas: np.ndarray, text: str, *, top: int, left: int, scale: float, colour: Colour
) -> None:
    """Draws text on a coloured patch."""
    baseline = cv2.getTextSize(text, FONT, scale, 1)[1]
    height, width = _label_size(text, scale)
    corner = (left + width - 1, top + height - 1)
    cv2.rectangle(canvas, (left, top), corner, colour, cv2.FILLED)
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    ink = (0, 0, 0) if luminance > 110 else (255, 255, 255)
    origin = (left + 2, top + height - baseline - 1)
    cv2.putText(canvas, text, origin, FONT, scale, ink, 1, cv2.LINE_AA)
