"""Test-time augmentation: an image is detected in several views, and what they show is merged.

A view is a canvas that `data.canvas`, the code of training and export, fills from the encoded
picture: mirrored, smaller, or larger. So the picture itself, at scale 1, is pixel for pixel what
the SavedModel sees without augmentation, and nothing is encoded anew. The canvas of a SavedModel
is fixed, hence:

- a scale below 1 leaves more of the canvas empty;
- a scale above 1 does not fit, so it becomes overlapping crops. A box that touches a border where
  a crop cuts the picture is left out: its object goes on beyond it, and another crop or scale shows
  it whole.

Boxes are taken back to the picture and merged class by class (`submission.fusion.plain_fusion`).
The default, `nmw`, averages the boxes of an object and keeps its best score. `wbf` also averages
the scores over all views, which suits `flip` alone; with scales it holds down objects that only
some views can show.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.inference.saved_detector import Detector, SavedDetector, load_canvas_detector
from tpudet.detection.submission.fusion.plain_fusion import METHODS, Boxes, fuse_class
from tpudet.trainkit.images.canvas import place_on_canvas

DEFAULT_SCALES = (0.75, 1.5)
MIN_SCALE, MAX_SCALE = 0.25, 4.0
_OVERLAP = 0.25  # of two neighbouring crops, as a share of the canvas
_CUT_PIXELS = 2.0  # how near to a border, in canvas pixels, a box counts as cut
_LAST = float(np.nextafter(np.float32(1), np.float32(0)))


class Augmentation(NamedTuple):
    """Which views, and how they are merged."""

    flip: bool = False
    scales: tuple[float, ...] = ()  # beside 1
    method: str = "nmw"  # one of METHODS
    iou: float = 0.55  # overlap above which boxes show one object


class View(NamedTuple):
    """A canvas and where the picture lies on it, see `data.canvas.PlacedImage`."""

    canvas: np.ndarray  # [H, W, 3] uint8
    size: np.ndarray  # [2] float32, height and width of the picture
    scale: np.ndarray  # [2] canvas pixels per pixel of the picture, y and x
    offset: np.ndarray  # [2] canvas pixels
    extent: np.ndarray  # [2] canvas pixels that the picture covers
    is_flipped: bool


Place = Callable[[bytes, float, tuple[float, float], bool], View]


def parse_augmentation(
    kinds: str, scales: Sequence[float] = DEFAULT_SCALES, *, method: str, iou: float
) -> Augmentation:
    """Reads the arguments of the command.

    Args:
        kinds: `flip`, `scales` or both, with a comma.
        scales: taken where `kinds` names scales; 1 is always a view.
        method: one of METHODS.
        iou: in 0..1.

    Raises:
        ValueError: lists what cannot be.
    """
    names = [name.strip() for name in kinds.split(",")]
    mistakes = [f"--tta {n!r} is not flip or scales" for n in names if n not in ("flip", "scales")]
    mistakes += [
        f"scale {scale:g} must lie in {MIN_SCALE:g}..{MAX_SCALE:g}"
        for scale in scales
        if not MIN_SCALE <= scale <= MAX_SCALE
    ]
    if method not in METHODS:
        mistakes.append(f"method {method!r} is none of {', '.join(METHODS)}")
    if not 0 <= iou <= 1:
        mistakes.append(f"overlap {iou:g} must lie in 0..1")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    others = sorted({float(scale) for scale in scales} - {1.0}) if "scales" in names else ()
    return Augmentation("flip" in names, tuple(others), method, iou)


def load_augmented_detector(
    saved: SavedDetector, augmentation: Augmentation, batch_size: int
) -> Detector:
    """Loads the graph as `load_detector` does; the function detects in all views and merges.

    Args:
        saved: the model.
        augmentation: which views.
        batch_size: canvases a call of the model.
    """
    height, width = saved.metadata["canvas_size"]
    detect_canvases = load_canvas_detector(saved)
    place = canvas_placer(height, width)
    most = saved.metadata.get("max_detections")

    def detect(encoded: Sequence[bytes]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        found: list[list[tuple]] = [[] for _ in encoded]
        waiting: list[tuple[int, View]] = []

        def flush() -> None:
            answers = detect_canvases(np.stack([view.canvas for _, view in waiting]))
            for (image, view), (labels, scores, boxes) in zip(waiting, answers, strict=True):
                restored, is_whole = restore_boxes(boxes, view)
                found[image].append((labels[is_whole], scores[is_whole], restored[is_whole]))
            waiting.clear()

        for image, contents in enumerate(encoded):
            for view in views_of(contents, place, augmentation):
                waiting.append((image, view))
                if len(waiting) == batch_size:
                    flush()
        if waiting:
            flush()
        return [merge_views(views, augmentation, most) for views in found]

    return detect


def canvas_placer(height: int, width: int) -> Place:
    """Returns the function that makes a view: (encoded, scale, position y x, flip)."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.string),
            tf.TensorSpec([], tf.float32),
            tf.TensorSpec([2], tf.float32),
            tf.TensorSpec([], tf.bool),
        ]
    )
    def place(encoded: Any, scale: Any, position: Any, flip: Any) -> tuple:
        placed = place_on_canvas(encoded, height, width, scale=scale, position=position, flip=flip)
        canvas = tf.image.pad_to_bounding_box(placed.image, 0, 0, height, width)
        extent = tf.cast(tf.shape(placed.image)[:2], tf.float32)
        return canvas, placed.original_size, placed.scale, placed.offset, extent

    def view(encoded: bytes, scale: float, position: tuple[float, float], flip: bool) -> View:
        tensors: Any = place(
            tf.constant(encoded), tf.constant(scale, tf.float32), tf.constant(position), flip
        )
        canvas, size, placed_scale, offset, extent = (tensor.numpy() for tensor in tensors)
        return View(canvas, size, placed_scale, offset, extent, flip)

    return view


def views_of(encoded: bytes, place: Place, augmentation: Augmentation) -> Iterator[View]:
    """Yields the views of a picture, that at scale 1 first."""
    flips = (False, True) if augmentation.flip else (False,)
    first = place(encoded, 1.0, (0.0, 0.0), False)
    yield first
    if augmentation.flip:
        yield place(encoded, 1.0, (0.0, 0.0), True)
    for scale in augmentation.scales:
        for position in crop_positions(first.size, first.canvas.shape[:2], scale):
            for flip in flips:
                yield place(encoded, scale, position, flip)


def crop_positions(
    size: Sequence[float] | np.ndarray, canvas: Sequence[int], scale: float
) -> list[tuple[float, float]]:
    """Returns the places of the crops that cover a picture at a scale, row by row.

    Args:
        size: height and width of the picture.
        canvas: height and width of the canvas.
        scale: relative to the largest size that fits into the canvas.

    Returns:
        Positions y, x in [0, 1), 0 the first of all possible places of a crop and 1 the last.
    """
    fitting = min(canvas[0] / size[0], canvas[1] / size[1])
    axes = []
    for side, room in zip(size, canvas, strict=True):
        beyond = side * fitting * scale - room
        count = 1 if beyond < 1 else 1 + math.ceil(beyond / (room * (1 - _OVERLAP)))
        axes.append([min(i / max(count - 1, 1), _LAST) for i in range(count)])
    return [(y, x) for y in axes[0] for x in axes[1]]


def restore_boxes(boxes: np.ndarray, view: View) -> tuple[np.ndarray, np.ndarray]:
    """Takes boxes from a view to the picture.

    Args:
        boxes: [n, 4] x1 y1 x2 y2, fractions of the canvas.
        view: where they were found.

    Returns:
        [n, 4] float64 x1 y1 x2 y2, fractions of the picture within 0..1; and [n] bool, whether the
        box has an area there and is not cut by a border of the crop.
    """
    sides = np.array(view.canvas.shape[1::-1], np.float64)  # x y, as all below
    extent, offset, scale, size = (
        np.asarray(pair, np.float64)[::-1]
        for pair in (view.extent, view.offset, view.scale, view.size)
    )
    corners = np.asarray(boxes, np.float64).reshape(-1, 2, 2) * sides
    # Where the picture goes on beyond the canvas; half a pixel may be rounding.
    goes_on_before = offset > 0.5
    goes_on_after = size * scale - offset - extent > 0.5
    is_cut = (corners[:, 0] < _CUT_PIXELS) & goes_on_before
    is_cut |= (corners[:, 1] > extent - _CUT_PIXELS) & goes_on_after
    fractions = np.clip((corners + offset) / (scale * size), 0, 1)
    if view.is_flipped:
        mirrored = 1 - fractions[:, ::-1, 0]
        fractions = np.stack([mirrored, fractions[:, :, 1]], axis=-1)
    is_kept = (fractions[:, 1] > fractions[:, 0]) & ~is_cut  # of either axis
    return fractions.reshape(-1, 4), np.all(is_kept, axis=1)


def merge_views(
    views: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    augmentation: Augmentation,
    most: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merges the detections of all views of a picture, class by class.

    Args:
        views: (labels [n], scores [n], boxes_normalized [n, 4]) of each.
        augmentation: the method.
        most: how many detections are kept, those with the best scores; None for all.

    Returns:
        The same for the picture, by falling score.
    """
    labels, scores, boxes = (np.concatenate(column) for column in zip(*views, strict=True))
    # The crops of one scale show the picture once.
    num_whole = (1 + len(augmentation.scales)) * (1 + augmentation.flip)
    merged = []
    for label in np.unique(labels):
        mine = labels == label
        members = Boxes(boxes[mine], scores[mine].astype(np.float64), np.ones(int(mine.sum())))
        fused = fuse_class(
            members,
            method=augmentation.method,
            iou_threshold=augmentation.iou,
            sigma=0.5,
            threshold=0.0,
            total_weight=float(num_whole),
        )
        merged += [(label, *row) for row in zip(fused.scores, fused.coordinates, strict=True)]
    merged.sort(key=lambda row: -row[1])
    merged = merged[:most]
    return (
        np.array([row[0] for row in merged], np.int32),
        np.array([row[1] for row in merged], np.float32),
        np.array([row[2] for row in merged], np.float32).reshape(-1, 4),
    )
