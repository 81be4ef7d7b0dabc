"""A SavedModel as `tpudet.detection.inference.export` wrote it: found, checked, and called. Needs no Keras."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.files import storage

Detected = tuple[np.ndarray, np.ndarray, np.ndarray]  # labels, scores, boxes_normalized
Detector = Callable[[Sequence[bytes]], list[Detected]]
CanvasDetector = Callable[[np.ndarray], list[Detected]]


class SavedDetectorError(UserError):
    """There is no SavedModel, or not one of this toolkit; says what to do."""


class SavedDetector(NamedTuple):
    """A SavedModel as `tpudet.detection.inference.export` wrote it."""

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
        if "saved_model.pb" in names and not os.path.basename(folder.rstrip("/")).startswith(".")
    ]
    if not found:
        there = ", ".join(storage.list_folder(model_dir)[:20]) or "nothing"
        raise SavedDetectorError(
            f"no SavedModel (saved_model.pb) in {model_dir} or below; there is: {there}. "
            "export_saved_model.sh writes one"
        )
    age = {f: storage.stat(os.path.join(f, "saved_model.pb")).modified_ns for f in found}
    return max(sorted(found), key=lambda folder: age[folder])


def read_saved_detector(directory: str) -> SavedDetector:
    """Reads what lies beside the graph of a SavedModel; the graph itself is not loaded.

    Raises:
        SavedDetectorError: the assets that `tpudet.detection.inference.export` writes are missing or not usable.
    """
    contents: dict[str, bytes] = {}
    for name in ("assets/classes.csv", "assets/metadata.json", "saved_model.pb"):
        path = os.path.join(directory, name)
        if not storage.exists(path):
            raise SavedDetectorError(
                f"{directory} has no {name}: without it nobody knows what its class ids mean. "
                "Export it again with export_saved_model.sh"
            )
        contents[name] = _read(path)
    # The index of the variables holds a checksum of each, so the weights need not be read.
    contents["variables"] = _read(os.path.join(directory, "variables", "variables.index"))
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
            "class ids would be given wrong names. Put that list back or export again"
        )
    digest = hashlib.sha256(b"".join(hashlib.sha256(c).digest() for c in contents.values()))
    return SavedDetector(directory, classes, metadata, digest.hexdigest())


def load_detector(saved: SavedDetector) -> Detector:
    """Loads the graph; the function takes encoded images and gives each one's valid detections.

    It returns (labels [n], scores [n], boxes_normalized [n, 4] x1 y1 x2 y2) an image.
    """
    call = _load_signature(saved, "serving_default")
    return lambda encoded: call(tf.constant(encoded))


def load_canvas_detector(saved: SavedDetector) -> CanvasDetector:
    """Loads the graph; the function takes pictures [B, H, W, 3] uint8, as large as the canvas.

    It returns what that of `load_detector` does; boxes are fractions of the canvas.
    """
    call = _load_signature(saved, "image_tensor")
    return lambda canvases: call(tf.constant(canvases))


def _load_signature(saved: SavedDetector, name: str) -> Callable[[tf.Tensor], list[Detected]]:
    model = tf.saved_model.load(saved.directory)
    in_pixels = saved.metadata["boxes"] == "pixels"

    def detect(images: tf.Tensor) -> list[Detected]:
        # Reached through `model`, which owns the variables, so that it lives as long as this.
        tensors = model.signatures[name](input=images)
        outputs = {name: tensor.numpy() for name, tensor in tensors.items()}
        boxes = outputs["detection_boxes"][:, :, [1, 0, 3, 2]]
        if in_pixels:
            boxes = boxes / outputs["image_sizes"][:, None, [1, 0, 1, 0]]
        return [
            (classes[:n].copy(), scores[:n].copy(), image_boxes[:n].copy())
            for n, classes, scores, image_boxes in zip(
                outputs["num_detections"],
                outputs["detection_classes"],
                outputs["detection_scores"],
                boxes,
                strict=True,
            )
        ]

    return detect


def _read(path: str) -> bytes:
    with storage.open_file(path, "rb") as file:
        return file.read()
