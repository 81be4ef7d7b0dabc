"""Finds, checks and calls SavedModels that `inference.export` wrote. Needs no Keras."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.inference.saved_files import (
    SAVED_MODEL_FILE,
    SavedDetectorError,
    check_files,
)
from tpudet.detection.ops.numpy_masks import Rle, encode_rle, paste_mask
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.files import storage


class ImageOutput(NamedTuple):
    """The n valid detections of an image, by falling score."""

    labels: np.ndarray  # [n] int32, 1-based
    scores: np.ndarray  # [n] float32
    boxes_normalized: np.ndarray  # [n, 4] float32 x1 y1 x2 y2
    masks: list[Rle] | None = None  # n COCO RLE dicts; None from a model without masks


Detector = Callable[[Sequence[bytes]], list[ImageOutput]]
CanvasDetector = Callable[[np.ndarray], list[ImageOutput]]


class SavedDetector(NamedTuple):
    """A SavedModel that `inference.export` wrote."""

    directory: str
    class_list_text: str
    metadata: dict  # contents of metadata.json
    fingerprint: str  # of weights, graph, classes and metadata


def find_saved_model(model_dir: str) -> str:
    """Returns the directory of the newest SavedModel at or below `model_dir`.

    Raises:
        SavedDetectorError: no such directory, or no SavedModel in it; lists what is there.
    """
    if not storage.is_folder(model_dir):
        raise SavedDetectorError(f"no directory {model_dir}: MODEL_DIR holds a SavedModel")
    found = [
        folder
        for folder, _, names in storage.walk(model_dir)
        if SAVED_MODEL_FILE in names and not os.path.basename(folder.rstrip("/")).startswith(".")
    ]
    if not found:
        there = ", ".join(storage.list_folder(model_dir)[:20]) or "nothing"
        raise SavedDetectorError(
            f"no SavedModel (saved_model.pb) in {model_dir} or below; there is: {there}. "
            "tpudet export writes one"
        )
    age = {f: storage.stat(os.path.join(f, SAVED_MODEL_FILE)).modified_ns for f in found}
    return max(sorted(found), key=lambda folder: age[folder])


def read_saved_detector(directory: str) -> SavedDetector:
    """Reads the assets of a SavedModel; the graph itself is not loaded.

    Raises:
        SavedDetectorError: the assets that `inference.export` writes are missing or not usable, or
            a file is cut off or of another export.
    """
    contents: dict[str, bytes] = {}
    for name in ("assets/classes.csv", "assets/metadata.json", SAVED_MODEL_FILE):
        path = os.path.join(directory, name)
        if not storage.exists(path):
            raise SavedDetectorError(
                f"{directory} has no {name}: without it the meaning of its class ids is unknown. "
                "Export it again with tpudet export"
            )
        contents[name] = _read(path)
    # The index of the variables holds a checksum of each, so the weights need not be read.
    try:
        contents["variables"] = _read(os.path.join(directory, "variables", "variables.index"))
    except FileNotFoundError as error:
        raise SavedDetectorError(
            f"{directory} has no variables/variables.index: copy it again, or export it again with "
            "tpudet export"
        ) from error
    classes = contents["assets/classes.csv"].decode()
    try:
        read_class_list(classes)
        metadata = json.loads(contents["assets/metadata.json"])
        missing = {"boxes", "canvas_size", "classes_sha256"} - metadata.keys()
    except (ValueError, AttributeError) as error:
        raise SavedDetectorError(f"{directory}: {error}") from error
    if missing:
        raise SavedDetectorError(f"{directory}/assets/metadata.json lacks {sorted(missing)}")
    if hashlib.sha256(classes.encode()).hexdigest() != metadata["classes_sha256"]:
        raise SavedDetectorError(
            f"{directory}/assets/classes.csv is not the list that the model was exported with: its "
            "class ids would get wrong names. Restore that list or export again"
        )
    check_files(directory)
    digest = hashlib.sha256(b"".join(hashlib.sha256(c).digest() for c in contents.values()))
    return SavedDetector(directory, classes, metadata, digest.hexdigest())


def load_detector(saved: SavedDetector) -> Detector:
    """Loads the graph; the function detects in encoded images.

    Raises:
        SavedDetectorError: it is damaged.
    """
    return _load_signature(saved, "serving_default")


def load_canvas_detector(saved: SavedDetector) -> CanvasDetector:
    """Loads the graph; the function detects in images [B, H, W, 3] uint8 of the canvas's size.

    Boxes are fractions of the canvas.
    """
    return _load_signature(saved, "image_tensor")


def _load_signature(saved: SavedDetector, name: str) -> Callable[[Any], list[ImageOutput]]:
    import tensorflow as tf

    try:
        model = tf.saved_model.load(saved.directory)
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise SavedDetectorError(
            f"{saved.directory} cannot be loaded: {error}. Copy it again, or export it again with "
            "tpudet export"
        ) from error
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
        encode_rle(paste_mask(mask, box, height=height, width=width))
        for mask, box in zip(masks[: len(boxes)], pixels, strict=True)
    ]


def _read(path: str) -> bytes:
    with storage.open_file(path, "rb") as file:
        return file.read()
