"""Draws one image: a PNG in full size, and a thumbnail with its boxes as numbers."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from tpudet.detection.inspection.objects import Objects
from tpudet.detection.inspection.outcomes import FAULT_NAMES, FOUND, IGNORED, Outcomes
from tpudet.detection.ops.drawing import Panel, draw_masks, draw_panels
from tpudet.detection.ops.numpy_masks import Rle, decode_rle
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.images.opencv_decode import decode_fitting_mask
from tpudet.trainkit.pages.drawing import (
    Colour,
    class_colour,
    encode_png,
    image_grid,
    thumbnail_jpeg,
)

# Distinct for people who do not tell red from green, too.
COLOURS: dict[str, Colour] = {
    "found": (54, 200, 130),
    "false": (255, 122, 26),
    "missed": (240, 60, 200),
    "ignored": (160, 166, 176),
}
_MAX_SIDE = 1280  # pixels; a larger image is drawn smaller, so that PNGs stay within megabytes
_MAX_MARKS = 20_000  # boxes in the page, 150 bytes each


class Mark(NamedTuple):
    """A box to show."""

    state: str  # of COLOURS, or "" without ground truth
    box: np.ndarray  # [4] y1 x1 y2 x2, fractions of the image
    class_id: int
    text: str  # its label
    mask: Rle | bytes | None = None  # of the whole image; bytes are a PNG file
    score: float | None = None  # of a prediction


class ImageCard(NamedTuple):
    """All that the page shows of one image."""

    image_id: str
    file: str  # name of its PNG
    jpeg: bytes  # thumbnail without boxes
    size: tuple[int, int]  # of the thumbnail, height and width in pixels
    original: tuple[int, int]
    marks: tuple[Mark, ...]  # the smallest last, so that it is on top
    counts: Counter[tuple[str, int]]  # of state and class, marks beyond the limit included
    badness: float


class Comparison(NamedTuple):
    """Predictions and ground truth of all images."""

    predicted: Objects
    ground_truth: Objects | None  # on the same images
    outcomes: Outcomes | None
    classes: tuple[ClassEntry, ...]
    min_score: float


def file_names(image_ids: Sequence[str]) -> list[str]:
    """Names of PNGs, all different even where upper and lower case are the same."""
    taken: set[str] = set()
    names = []
    for image_id in image_ids:
        stem = re.sub(r"[^\w.-]+", "_", image_id)[:120].strip("._") or "image"
        name, number = stem, 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name.casefold())
        names.append(f"{name}.png")
    return names


def draw_image(
    comparison: Comparison,
    row: int,
    image: np.ndarray,
    file: str,
    *,
    num_images: int,
    max_bytes: int,
) -> tuple[ImageCard, bytes]:
    """Draws one image.

    Args:
        comparison: of all images.
        row: of the image.
        image: [h, w, 3] uint8 RGB.
        file: name of its PNG.
        num_images: on the page; limits the boxes that it shows of each.
        max_bytes: of the thumbnail.

    Returns:
        The card, and the PNG: ground truth on the left, predictions on the right.
    """
    marks = _predicted_marks(comparison, row)
    ground_truth_marks = _ground_truth_marks(comparison, row)
    on_page = [mark for mark in ground_truth_marks if mark.state != "found"] + marks
    # The first are kept: what is missed, then the best scores.
    shown = on_page[: max(1, _MAX_MARKS // num_images)]
    shown.sort(key=lambda mark: -float(np.prod(mark.box[2:] - mark.box[:2])))
    size, jpeg = thumbnail_jpeg(_fill(image, marks), max_bytes)
    card = ImageCard(
        image_id=str(comparison.predicted.image_ids[row]),
        file=file,
        jpeg=jpeg,
        size=size,
        original=(image.shape[0], image.shape[1]),
        marks=tuple(shown),
        counts=Counter((mark.state, mark.class_id) for mark in on_page),
        badness=float(comparison.outcomes.badness[row]) if comparison.outcomes else 0.0,
    )
    return card, _draw_png(comparison, image, card.image_id, ground_truth_marks, marks)


def _predicted_marks(comparison: Comparison, row: int) -> list[Mark]:
    predicted, outcomes = comparison.predicted, comparison.outcomes
    marks = []
    for i in range(*predicted.of_image(row).indices(len(predicted.images))):
        class_id = int(predicted.class_ids[i])
        text = f"{comparison.classes[class_id - 1].name} {predicted.scores[i]:.2f}"
        state = ""
        if outcomes is not None:
            kind = int(outcomes.kinds[i])
            state = {FOUND: "found", IGNORED: "ignored"}.get(kind, "false")
            text += f": {_describe(comparison, outcomes, i, kind)}"
        mask = None if predicted.masks is None else predicted.masks[i]
        score = float(predicted.scores[i])
        marks.append(Mark(state, predicted.boxes[i], class_id, text, mask, score))
    return marks


def _describe(comparison: Comparison, outcomes: Outcomes, row: int, kind: int) -> str:
    if kind == IGNORED:
        return "in a group region"
    confused = int(outcomes.confused_with[row])
    if confused >= 0 and comparison.ground_truth is not None:
        name = comparison.classes[int(comparison.ground_truth.class_ids[confused]) - 1].name
        return f"wrong class, it is {name}"
    overlap = f"IoU {outcomes.overlaps[row]:.2f}"
    return f"found, {overlap}" if kind == FOUND else f"{FAULT_NAMES[kind]}, {overlap}"


def _ground_truth_marks(comparison: Comparison, row: int) -> list[Mark]:
    ground_truth, outcomes = comparison.ground_truth, comparison.outcomes
    if ground_truth is None or outcomes is None:
        return []
    marks = []
    for i in range(*ground_truth.of_image(row).indices(len(ground_truth.images))):
        state = "missed" if outcomes.is_missed[i] else "found"
        state = "ignored" if ground_truth.is_group[i] else state
        name = comparison.classes[int(ground_truth.class_ids[i]) - 1].name
        what = "group region" if ground_truth.is_group[i] else state
        class_id, text = int(ground_truth.class_ids[i]), f"{name}: {what}"
        mask = None if ground_truth.masks is None else ground_truth.masks[i]
        marks.append(Mark(state, ground_truth.boxes[i], class_id, text, mask))
    return sorted(marks, key=lambda mark: mark.state != "missed")


def _draw_png(
    comparison: Comparison,
    image: np.ndarray,
    image_id: str,
    ground_truth: list[Mark],
    predicted: list[Mark],
) -> bytes:
    factor = min(1.0, _MAX_SIDE / max(image.shape[:2]))
    size = [max(1, round(length * factor)) for length in image.shape[1::-1]]

    def draw(marks: list[Mark], caption: str) -> np.ndarray:
        filled = _fill(image, marks)
        if factor < 1:
            filled = cv2.resize(filled, size, interpolation=cv2.INTER_AREA)
        return draw_panels(filled, [_panel(filled, marks, caption)])

    limit = f"score {comparison.min_score:g} or more"
    if comparison.ground_truth is None:
        return encode_png(draw(predicted, f"{image_id}: {len(predicted)} predictions of {limit}"))
    missed = sum(mark.state == "missed" for mark in ground_truth)
    false = sum(mark.state == "false" for mark in predicted)
    panels = [
        draw(
            ground_truth,
            f"{image_id}: ground truth, {missed} of {len(ground_truth)} missed (pink)",
        ),
        draw(predicted, f"{len(predicted)} predictions of {limit}, {false} false (orange)"),
    ]
    return encode_png(image_grid(panels, columns=len(panels)))


def _colour(mark: Mark) -> Colour:
    return COLOURS[mark.state] if mark.state else class_colour(mark.class_id)


def _fill(image: np.ndarray, marks: list[Mark]) -> np.ndarray:
    """Draws the masks of marks, where they have one of the size of the image; the first on top."""
    size = image.shape[:2]
    masked = [mark for mark in reversed(marks) if mark.mask]
    decoded = ((_decode(mark.mask, size), _colour(mark)) for mark in masked)
    return draw_masks(image, ((m, colour) for m, colour in decoded if m is not None))


def _decode(mask: Rle | bytes | None, size: tuple[int, ...]) -> np.ndarray | None:
    """Returns a mask as [h, w] bool; None if it is not of this size."""
    if isinstance(mask, bytes):
        return decode_fitting_mask(mask, size)
    return decode_rle(mask) if mask and tuple(mask["size"]) == size else None


def _panel(image: np.ndarray, marks: list[Mark], caption: str) -> Panel:
    boxes = np.array([mark.box for mark in marks]).reshape(-1, 4) * np.tile(image.shape[:2], 2)
    # A correct box needs no label, which would only cover the others.
    texts = ["" if mark.state == "found" else mark.text.split(":")[0] for mark in marks]
    colours = [_colour(mark) for mark in marks]
    order = sorted(range(len(marks)), key=lambda i: marks[i].state == "found")
    return Panel(boxes[order], [texts[i] for i in order], [colours[i] for i in order], caption)
