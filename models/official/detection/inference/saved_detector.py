"""Checks and calls SavedModels that `inference.export` wrote. Needs no Keras."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.ops.numpy_masks import Rle, paste_rle
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.saved_model import SavedModel, load_saved_model, read_saved_model


class ImageOutput(NamedTuple):
    """The n valid detections of an image, in descending order of score."""

    labels: np.ndarray  # [n] int32, 1-based
    scores: np.ndarray  # [n] float32
    boxes_normalized: np.ndarray  # [n, 4] float32 x1 y1 x2 y2
    masks: list[Rle] | None = None  # n COCO RLE dicts; None from a model without masks


Detector = Callable[[Sequence[bytes]], list[ImageOutput]]
CanvasDetector = Callable[[np.ndarray], list[ImageOutput]]


def read_saved_detector(directory: str) -> SavedModel:
    """Reads the assets of a SavedModel of `inference.export`; raises as `read_saved_model`."""
    return read_saved_model(directory, facts=("boxes", "canvas_size"))


def load_detector(saved: SavedModel) -> Detector:
    """Loads the graph; the function detects in encoded images.

    Raises:
        SavedModelError: it is damaged.
    """
    return _load_signature(saved, "serving_default")


def load_canvas_detector(saved: SavedModel) -> CanvasDetector:
    """Loads the graph; the function detects in images [B, H, W, 3] uint8 of the canvas's size.

    Boxes are fractions of the canvas.
    """
    return _load_signature(saved, "image_tensor")


def exported_padding(saved: SavedModel) -> tuple[int, int, int]:
    """Red, green and blue, uint8, that the network saw beyond an image; black if it is not said.

    Raises:
        UserError: the metadata have something else there.
    """
    rgb = saved.metadata.get("padding_rgb", [0, 0, 0])
    match rgb:
        case [int(red), int(green), int(blue)] if min(rgb) >= 0 and max(rgb) <= 255:
            return red, green, blue
    raise UserError(
        f"the metadata of {saved.directory} say that padding_rgb is {rgb!r}; it must be three "
        "integers in 0..255. Export the model again."
    )


def _load_signature(saved: SavedModel, name: str) -> Callable[[Any], list[ImageOutput]]:
    import tensorflow as tf

    model = load_saved_model(saved)
    in_pixels = saved.metadata["boxes"] == "pixels"

    def detect(images: Any) -> list[ImageOutput]:
        # Reached through `model`, which owns the variables, so that it lives as long as this.
        tensors = model.signatures[name](input=tf.constant(images))
        outputs = {name: tensor.numpy() for name, tensor in tensors.items()}
        boxes = outputs["detection_boxes"][:, :, [1, 0, 3, 2]]
        if in_pixels:
            boxes = boxes / outputs["image_sizes"][:, None, [1, 0, 1, 0]]
        return [
            ImageOutput(
                outputs["detection_classes"][i, :n].copy(),
                outputs["detection_scores"][i, :n].copy(),
                boxes[i, :n].copy(),
                _paste_masks(outputs, i, boxes[i, :n]) if "detection_masks" in outputs else None,
            )
            for i, n in enumerate(outputs["num_detections"])
        ]

    return detect


def _paste_masks(outputs: dict[str, np.ndarray], image: int, boxes: np.ndarray) -> list[Rle]:
    """The masks of an image as RLE; `boxes` [n, 4] are x1 y1 x2 y2, fractions of the image."""
    height, width = (round(float(side)) for side in outputs["image_sizes"][image])
    pixels = boxes[:, [1, 0, 3, 2]] * [height, width, height, width]
    masks = outputs["detection_masks"][image]
    return [
        paste_rle(mask, box, height=height, width=width)
        for mask, box in zip(masks[: len(boxes)], pixels, strict=True)
    ]
