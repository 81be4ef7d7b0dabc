"""Pictures of one image: a PNG of full size, and a thumbnail with the boxes as numbers."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

from tpudet.detection.inspection.objects import Objects
from tpudet.detection.inspection.outcomes import FAULT_NAMES, FOUND, IGNORED, Outcomes
from tpudet.detection.ops.drawing import Panel, draw_panels
from tpudet.trainkit.class_list import ClassEntry
from tpudet.trainkit.pages.drawing import Colour, class_colour, encode_png, thumbnail_jpeg

# Told apart by people who do not tell red from green, too.
COLOURS: dict[str, Colour] = {
    "found": (54, 200, 130),
    "false": (255, 122, 26),
    "missed": (240, 60, 200),
    "ignored": (160, 166, 176),
}
_MAX_SIDE = 1280  # pixels; a larger picture is drawn smaller, so that PNGs stay within megabytes
_MARKS_OF_ALL = 20_000  # boxes in the page, 150 bytes each


class Mark(NamedTuple):
    """A box to show."""

    state: str  # of COLOURS, or "" where there is no ground truth
    box: np.ndarray  # [4] y1 x1 y2 x2, fractions of the picture
    class_id: int
    text: str  # what it is, in words


class Picture(NamedTuple):
    """One image with all that is shown of it."""

    image_id: str
    file: str  # name of its PNG
    jpeg: bytes  # thumbnail without boxes
    size: tuple[int, int]  # of the thumbnail, height and width in pixels
    original: tuple[int, int]
    marks: tuple[Mark, ...]  # the smallest last, so that it lies on top
    counts: Counter[tuple[str, int]]  # of state and class, with marks too many to be shown
    badness: float


class Scene(NamedTuple):
    """All images and what is known of them."""

    found: Objects
    truth: Objects | None  # on the same images
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


def draw_picture(
    scene: Scene, row: int, image: np.ndarray, file: str, *, num_pictures: int, max_bytes: int
) -> tuple[Picture, bytes]:
    """Draws one image.

    Args:
        scene: of all images.
        row: of the image.
        image: [h, w, 3] uint8 RGB.
        file: name of its PNG.
        num_pictures: how many there will be; limits the boxes that the page shows of each.
        max_bytes: of the thumbnail.

    Returns:
        What the page shows, and the PNG: ground truth on the left, predictions on the right.
    """
    marks = _found_marks(scene, row)
    true_marks = _true_marks(scene, row)
    on_page = [mark for mark in true_marks if mark.state != "found"] + marks
    # The first are kept: what is missed, then the best scores.
    shown = on_page[: max(1, _MARKS_OF_ALL // num_pictures)]
    shown.sort(key=lambda mark: -float(np.prod(mark.box[2:] - mark.box[:2])))
    size, jpeg = thumbnail_jpeg(image, max_bytes)
    picture = Picture(
        image_id=str(scene.found.image_ids[row]),
        file=file,
        jpeg=jpeg,
        size=size,
        original=(image.shape[0], image.shape[1]),
        marks=tuple(shown),
        counts=Counter((mark.state, mark.class_id) for mark in on_page),
        badness=float(scene.outcomes.badness[row]) if scene.outcomes else 0.0,
    )
    return picture, _draw_png(scene, image, picture.image_id, true_marks, marks)


def _found_marks(scene: Scene, row: int) -> list[Mark]:
    found, outcomes = scene.found, scene.outcomes
    marks = []
    for i in range(*found.of_image(row).indices(len(found.images))):
        class_id = int(found.class_ids[i])
        text = f"{scene.classes[class_id - 1].name} {found.scores[i]:.2f}"
        state = ""
        if outcomes is not None:
            kind = int(outcomes.kinds[i])
            state = {FOUND: "found", IGNORED: "ignored"}.get(kind, "false")
            text += f": {_describe(scene, outcomes, i, kind)}"
        marks.append(Mark(state, found.boxes[i], class_id, text))
    return marks


def _describe(scene: Scene, outcomes: Outcomes, row: int, kind: int) -> str:
    if kind == IGNORED:
        return "in a group region"
    confused = int(outcomes.confused_with[row])
    if confused >= 0 and scene.truth is not None:
        name = scene.classes[int(scene.truth.class_ids[confused]) - 1].name
        return f"wrong class, it is {name}"
    overlap = f"IoU {outcomes.overlaps[row]:.2f}"
    return f"found, {overlap}" if kind == FOUND else f"{FAULT_NAMES[kind]}, {overlap}"


def _true_marks(scene: Scene, row: int) -> list[Mark]:
    truth, outcomes = scene.truth, scene.outcomes
    if truth is None or outcomes is None:
        return []
    marks = []
    for i in range(*truth.of_image(row).indices(len(truth.images))):
        state = "missed" if outcomes.is_missed[i] else "found"
        state = "ignored" if truth.is_group[i] else state
        name = scene.classes[int(truth.class_ids[i]) - 1].name
        what = "group region" if truth.is_group[i] else state
        marks.append(Mark(state, truth.boxes[i], int(truth.class_ids[i]), f"{name}: {what}"))
    return sorted(marks, key=lambda mark: mark.state != "missed")


def _draw_png(
    scene: Scene, image: np.ndarray, image_id: str, truth: list[Mark], found: list[Mark]
) -> bytes:
    factor = min(1.0, _MAX_SIDE / max(image.shape[:2]))
    if factor < 1:
        size = [max(1, round(length * factor)) for length in image.shape[1::-1]]
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    limit = f"score {scene.min_score:g} or more"
    if scene.truth is None:
        panels = [_panel(image, found, f"{image_id}: {len(found)} predictions of {limit}")]
    else:
        missed, false = (
            sum(mark.state == state for mark in marks)
            for state, marks in (("missed", truth), ("false", found))
        )
        panels = [
            _panel(image, truth, f"{image_id}: truth, {missed} of {len(truth)} missed (pink)"),
            _panel(image, found, f"{len(found)} predictions of {limit}, {false} false (orange)"),
        ]
    return encode_png(draw_panels(image, panels))


def _panel(image: np.ndarray, marks: list[Mark], caption: str) -> Panel:
    boxes = np.array([mark.box for mark in marks]).reshape(-1, 4) * np.tile(image.shape[:2], 2)
    # What is right needs no label, and would only cover what is not.
    texts = ["" if mark.state == "found" else mark.text.split(":")[0] for mark in marks]
    colours = [COLOURS[m.state] if m.state else class_colour(m.class_id) for m in marks]
    order = sorted(range(len(marks)), key=lambda i: marks[i].state == "found")
    return Panel(boxes[order], [texts[i] for i in order], [colours[i] for i in order], caption)
