"""Test-time augmentation: detects in several views of an image and merges the detections.

A view is a canvas that `trainkit.images.canvas`, the code of training and export, fills from the
encoded image: mirrored, smaller, or larger. So the view at scale 1 is pixel for pixel what the
SavedModel sees without augmentation, and nothing is encoded again. The canvas of a SavedModel is
fixed, hence:

- a scale below 1 leaves more of the canvas empty;
- a scale above 1 does not fit, so it becomes overlapping crops. A box that touches a border where
  a crop cuts the image is left out: its object continues beyond it, and another crop or scale shows
  it whole.

Boxes are moved back to the image and merged class by class (`submission.fusion.plain_fusion`). Of a
model whose classes suppress each other, merged boxes then do so too, by the model's own overlap.
The default, `nmw`, averages the boxes of an object and keeps its best score. `wbf` also averages
the scores over all views, which suits `flip` alone; with scales it lowers the scores of objects
that only some views can show.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.detection.inference.saved_detector import (
    Detector,
    ImageOutput,
    exported_padding,
    load_canvas_detector,
)
from tpudet.detection.inference.view_settings import ViewSettings
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.detection.submission.fusion.plain_fusion import Boxes, fuse_class, iou
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.canvas import pad_with_colour, place_on_canvas
from tpudet.trainkit.saved_model import SavedModel

_OVERLAP = 0.25  # of two neighbouring crops, as a fraction of the canvas
_CUT_PIXELS = 2.0  # distance to a border, in canvas pixels, below which a box counts as cut
_LAST = float(np.nextafter(np.float32(1), np.float32(0)))


class View(NamedTuple):
    """A canvas and the place of the image on it, see `trainkit.images.canvas.PlacedImage`."""

    canvas: np.ndarray  # [H, W, 3] uint8
    size: np.ndarray  # [2] float32, height and width of the image
    scale: np.ndarray  # [2] canvas pixels per pixel of the image, y and x
    offset: np.ndarray  # [2] canvas pixels
    extent: np.ndarray  # [2] canvas pixels that the image covers
    is_flipped: bool
    # Whether the image begins and ends with this crop, y and x, though rounding may cut off pixels.
    begins: tuple[bool, bool] = (False, False)
    ends: tuple[bool, bool] = (False, False)


Place = Callable[[bytes, float, tuple[float, float], bool], View]


def load_view_detector(saved: SavedModel, settings: ViewSettings, batch_size: int) -> Detector:
    """Loads the graph as `load_detector` does; the function detects in all views and merges.

    Args:
        saved: a model without masks.
        settings: of the views.
        batch_size: canvases per call of the model.

    Raises:
        UserError: the model does not see images as large as the canvas allows, or its metadata lack
            a value.
    """
    resize = saved.metadata.get("resize", "fit")
    if resize != "fit":
        raise UserError(
            f"{saved.directory} was exported with data.resize {resize}: views at other scales are "
            "there for fit only. Predict without --tta."
        )
    height, width = saved.metadata["canvas_size"]
    detect_canvases = load_canvas_detector(saved)
    place = canvas_placer(height, width, exported_padding(saved))
    most = saved.metadata.get("max_detections")
    # Earlier versions did not write these.
    is_agnostic = saved.metadata.get("class_agnostic", False)
    agnostic_iou = saved.metadata.get("nms_iou_threshold") if is_agnostic else None
    if is_agnostic and not isinstance(agnostic_iou, int | float):
        raise UserError(
            f"the metadata of {saved.directory} say class_agnostic, but nms_iou_threshold is "
            f"{agnostic_iou!r}; it must be a number such as 0.5. Export the model again, or "
            "predict without --tta."
        )

    def detect(encoded: Sequence[bytes]) -> list[ImageOutput]:
        outputs: list[list[ImageOutput]] = [[] for _ in encoded]
        waiting: list[tuple[int, View]] = []

        def flush() -> None:
            detected = detect_canvases(np.stack([view.canvas for _, view in waiting]))
            for (image, view), found in zip(waiting, detected, strict=True):
                boxes, is_whole = restore_boxes(found.boxes_normalized, view)
                outputs[image].append(
                    ImageOutput(found.labels[is_whole], found.scores[is_whole], boxes[is_whole])
                )
            waiting.clear()

        for image, contents in enumerate(encoded):
            for view in make_views(contents, place, settings):
                waiting.append((image, view))
                if len(waiting) == batch_size:
                    flush()
        if waiting:
            flush()
        return [merge_views(views, settings, most, agnostic_iou) for views in outputs]

    return detect


def canvas_placer(height: int, width: int, padding: Sequence[int]) -> Place:
    """Returns the function that makes a view: (encoded, scale, position y x, flip).

    Args:
        height: of the canvas.
        width: of the canvas.
        padding: red, green and blue beyond the image, 0..255.
    """

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
        canvas = pad_with_colour(placed.image, height, width, padding)
        extent = tf.cast(tf.shape(placed.image)[:2], tf.float32)
        return canvas, placed.original_size, placed.scale, placed.offset, extent

    def view(encoded: bytes, scale: float, position: tuple[float, float], flip: bool) -> View:
        tensors: Any = place(
            tf.constant(encoded), tf.constant(scale, tf.float32), tf.constant(position), flip
        )
        canvas, size, placed_scale, offset, extent = (tensor.numpy() for tensor in tensors)
        return View(canvas, size, placed_scale, offset, extent, flip)

    return view


def make_views(encoded: bytes, place: Place, settings: ViewSettings) -> Iterator[View]:
    """Yields the views of an image, that at scale 1 first."""
    flips = (False, True) if settings.flip else (False,)
    whole = place(encoded, 1.0, (0.0, 0.0), False)
    yield whole
    if settings.flip:
        yield place(encoded, 1.0, (0.0, 0.0), True)
    for scale in settings.scales:
        positions = crop_positions(whole.size, whole.canvas.shape[:2], scale)
        first, last = positions[0], positions[-1]
        for y, x in positions:
            for flip in flips:
                view = place(encoded, scale, (y, x), flip)
                left, right = (last[1], first[1]) if flip else (first[1], last[1])
                yield view._replace(
                    begins=(y == first[0], x == left), ends=(y == last[0], x == right)
                )


def crop_positions(
    size: Sequence[float] | np.ndarray, canvas: Sequence[int], scale: float
) -> list[tuple[float, float]]:
    """Returns the places of the crops that cover an image at a scale, row by row.

    Args:
        size: height and width of the image.
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
    """Moves boxes from a view to the image.

    Args:
        boxes: [n, 4] x1 y1 x2 y2, fractions of the canvas.
        view: where they were found.

    Returns:
        [n, 4] float64 x1 y1 x2 y2, fractions of the image within 0..1; and [n] bool, whether the
        box has an area there and is not cut by a border of the crop.
    """
    extent, offset, scale, size = (
        np.asarray(pair, np.float64) for pair in (view.extent, view.offset, view.scale, view.size)
    )
    corners = np.asarray(boxes, np.float64).reshape(-1, 2, 2)[..., ::-1] * view.canvas.shape[:2]
    # Where the image continues beyond the canvas; half a pixel may be rounding.
    continues_before = (offset > 0.5) & ~np.array(view.begins)
    continues_after = (size * scale - offset - extent > 0.5) & ~np.array(view.ends)
    is_cut = (corners[:, 0] < _CUT_PIXELS) & continues_before
    is_cut |= (corners[:, 1] > extent - _CUT_PIXELS) & continues_after
    original = boxes_to_original(
        corners.reshape(1, -1, 4), scales=scale[None], offsets=offset[None], sizes=size[None]
    )
    fractions = original.reshape(-1, 2, 2) / size  # corner, then y x
    if view.is_flipped:
        mirrored = 1 - fractions[:, ::-1, 1]
        fractions = np.stack([fractions[:, :, 0], mirrored], axis=-1)
    is_kept = (fractions[:, 1] > fractions[:, 0]) & ~is_cut  # of either axis
    return fractions[..., ::-1].reshape(-1, 4), np.all(is_kept, axis=1)


def merge_views(
    views: Sequence[ImageOutput],
    settings: ViewSettings,
    most: int | None,
    agnostic_iou: float | None = None,
) -> ImageOutput:
    """Merges the detections of all views of an image, class by class.

    Args:
        views: the detections of each.
        settings: the method.
        most: how many detections are kept, those with the best scores; None for all.
        agnostic_iou: overlap above which a merged box is dropped for a better one of another class;
            None: classes do not suppress each other.

    Returns:
        The same for the image, in descending order of score.
    """
    labels = np.concatenate([view.labels for view in views])
    scores = np.concatenate([view.scores for view in views])
    boxes = np.concatenate([view.boxes_normalized for view in views])
    # The crops of one scale show the image once.
    num_whole = (1 + len(settings.scales)) * (1 + settings.flip)
    merged = []
    for label in np.unique(labels):
        mine = labels == label
        members = Boxes(boxes[mine], scores[mine].astype(np.float64), np.ones(int(mine.sum())))
        fused = fuse_class(
            members,
            method=settings.method,
            iou_threshold=settings.iou,
            sigma=0.5,
            threshold=0.0,
            total_weight=float(num_whole),
        )
        merged += [(label, *row) for row in zip(fused.scores, fused.coordinates, strict=True)]
    merged.sort(key=lambda row: -row[1])
    if agnostic_iou is not None:
        merged = _suppress_across_classes(merged, agnostic_iou)
    merged = merged[:most]
    return ImageOutput(
        np.array([row[0] for row in merged], np.int32),
        np.array([row[1] for row in merged], np.float32),
        np.array([row[2] for row in merged], np.float32).reshape(-1, 4),
    )


def _suppress_across_classes(rows: Sequence[tuple], iou_threshold: float) -> list[tuple]:
    """Drops each (label, score, box) that a kept one of another class covers.

    They are in descending order of score.
    """
    kept: list[tuple] = []
    for label, score, box in rows:
        others = np.array([other[2] for other in kept if other[0] != label]).reshape(-1, 4)
        if not (iou(box, others) > iou_threshold).any():
            kept.append((label, score, box))
    return kept
