"""A trained detector -> a SavedModel that takes encoded images and needs nothing of this toolkit.

Preprocessing is the evaluation's own (`tpudet.trainkit.images.canvas`), so a SavedModel answers what the
evaluation saw.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Literal

import keras
import tensorflow as tf

from tpudet.detection.types import Batch, Detections
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.files import storage
from tpudet.trainkit.images.canvas import PlacedImage, decode_to_canvas, resize_to_canvas

BoxConvention = Literal["normalized", "pixels"]

_SAVED_MODEL_FILE = "saved_model.pb"


def export_saved_model(
    *,
    model: keras.Model,
    predict: Callable[[Batch], Detections],
    canvas_size: tuple[int, int],
    class_list_text: str,
    directory: str,
    metadata: Mapping[str, object],
    boxes: BoxConvention,
    overwrite: bool = False,
) -> str:
    """Writes a SavedModel with two signatures, any batch size B from 1 up.

    - `serving_default`: `input`, [B] string, JPEG or PNG files that TensorFlow decodes rightly
      (see `tpudet.trainkit.images.standardize.standardize`).
    - `image_tensor`: `input`, [B, h, w, 3] uint8 RGB, all of one size.

    Both return `num_detections` [B] int32; `detection_boxes` [B, K, 4] float32, y1 x1 y2 x2 of the
    *original* picture, clipped to it; `detection_classes` [B, K] int32, 1-based; `detection_scores`
    [B, K] float32, falling; `image_sizes` [B, 2] float32, height and width of the originals. Rows
    from `num_detections` on are zero.

    Assets: `classes.csv` as given, and `metadata.json`: `metadata` plus `canvas_size`, `boxes`,
    `max_detections`, `classes_sha256`. The directory has its name only once it is whole.

    Args:
        model: owns every variable that `predict` reads, with the values to export in it.
        predict: the detector, traced with a batch size that is not known.
        canvas_size: height and width, which images are resized to inside.
        class_list_text: contents of classes.csv.
        directory: to write.
        metadata: values of JSON: version, step, git commit.
        boxes: whether boxes are fractions of the original picture in 0..1, or its pixels.
        overwrite: replace what `directory` holds.

    Returns:
        `directory`.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is false.
        ValueError: the class list is not usable, or `metadata` names a key of the list above.
    """
    read_class_list(class_list_text)
    directory = directory.rstrip("/")
    if _is_taken(directory) and not overwrite:
        raise FileExistsError(f"{directory} exists: give another directory or allow overwriting")
    module = _Detector(model, predict, canvas_size, boxes)
    image_tensor = module.image_tensor.get_concrete_function()
    facts = {
        "canvas_size": list(canvas_size),
        "boxes": boxes,
        "max_detections": image_tensor.structured_outputs["detection_scores"].shape[1],
    }
    contents = _metadata_json(metadata, facts, class_list_text)
    temporary = os.path.join(os.path.dirname(directory), f".{os.path.basename(directory)}.tmp")
    if storage.exists(temporary):  # left by an export that was killed
        storage.remove_folder(temporary)
    with tempfile.TemporaryDirectory() as folder:
        module.assets = [
            _asset(os.path.join(folder, "classes.csv"), class_list_text),
            _asset(os.path.join(folder, "metadata.json"), contents),
        ]
        signatures = {"serving_default": module.encoded, "image_tensor": image_tensor}
        tf.saved_model.save(module, temporary, signatures=signatures)
    _publish(temporary, directory)
    return directory


class _Detector(tf.Module):
    """What is saved: the variables and the two entry points."""

    def __init__(
        self,
        model: keras.Model,
        predict: Callable[[Batch], Detections],
        canvas_size: tuple[int, int],
        boxes: BoxConvention,
    ):
        super().__init__()
        # The TensorFlow variables alone: the Keras objects would drag their classes along.
        self.model_variables = [variable.value for variable in model.variables]
        self._predict = predict
        self._canvas_size = canvas_size
        self._boxes: BoxConvention = boxes
        self.assets: list[tf.saved_model.Asset] = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="input")])
    def encoded(self, encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(encoded, decode_to_canvas)

    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="input")])
    def image_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(images, resize_to_canvas)

    def _detect(
        self, inputs: tf.Tensor, to_canvas: Callable[..., PlacedImage]
    ) -> dict[str, tf.Tensor]:
        height, width = self._canvas_size

        pair = tf.TensorSpec([2], tf.float32)
        placed = tf.map_fn(
            lambda picture: to_canvas(picture, height, width),
            inputs,
            fn_output_signature=PlacedImage(
                tf.TensorSpec([height, width, 3], tf.uint8), pair, pair, pair
            ),
            parallel_iterations=16,  # images decoded at a time, on as many cores as there are
        )
        b = tf.shape(placed.image)[0]
        batch = Batch(
            images=placed.image,
            boxes=tf.zeros([b, 1, 4]),
            classes=tf.zeros([b, 1], tf.int32),
            is_crowd=tf.zeros([b, 1], tf.bool),
            records=tf.range(tf.cast(b, tf.int64)),
            original_sizes=placed.original_size,
            scales=placed.scale,
            offsets=placed.offset,
        )
        return _outputs(self._predict(batch), batch, self._boxes)


def _outputs(detections: Detections, batch: Batch, boxes: BoxConvention) -> dict[str, tf.Tensor]:
    """Takes detections from the canvas to the original picture, rows beyond the valid ones zero."""
    to_all_sides = [1, 1, 2]  # [B, 1, 2] y x -> [B, 1, 4] y x y x
    scales, offsets, sizes = (
        tf.tile(pair[:, None, :], to_all_sides)
        for pair in (batch.scales, batch.offsets, batch.original_sizes)
    )
    pixels = tf.clip_by_value((detections.boxes + offsets) / scales, 0.0, sizes)
    original = pixels / sizes if boxes == "normalized" else pixels
    k = tf.shape(detections.scores)[1]
    is_valid = tf.range(k)[None, :] < detections.num_detections[:, None]  # [B, K]
    return {
        "num_detections": tf.cast(detections.num_detections, tf.int32),
        "detection_boxes": tf.where(is_valid[:, :, None], original, 0.0),
        "detection_classes": tf.where(is_valid, tf.cast(detections.classes, tf.int32), 0),
        "detection_scores": tf.where(is_valid, tf.cast(detections.scores, tf.float32), 0.0),
        "image_sizes": batch.original_sizes,
    }


def _metadata_json(
    given: Mapping[str, object], facts: Mapping[str, object], class_list_text: str
) -> str:
    digest = hashlib.sha256(class_list_text.encode()).hexdigest()
    facts = {**facts, "classes_sha256": digest}
    if facts.keys() & given.keys():
        raise ValueError(f"metadata sets {sorted(facts.keys() & given.keys())}: export does so")
    return json.dumps({**given, **facts}, indent=2) + "\n"


def _asset(path: str, text: str) -> tf.saved_model.Asset:
    with storage.open_file(path, "w") as file:
        file.write(text)
    return tf.saved_model.Asset(path)


def _is_taken(directory: str) -> bool:
    if "://" in directory:  # where a directory is but a part of its files' names
        return storage.exists(os.path.join(directory, _SAVED_MODEL_FILE))
    return storage.is_folder(directory) and bool(storage.list_folder(directory))


def _publish(temporary: str, directory: str) -> None:
    """Gives a directory its final name, in the place of an older one."""
    is_local = "://" not in directory
    if _is_taken(directory) or (is_local and storage.is_folder(directory)):
        storage.remove_folder(directory)
    if is_local:
        storage.rename(temporary, directory)
        return
    # Object stores rename file by file, so the one that makes it a SavedModel goes last.
    paths = [
        os.path.join(folder, name) for folder, _, names in storage.walk(temporary) for name in names
    ]
    for path in sorted(paths, key=lambda path: os.path.basename(path) == _SAVED_MODEL_FILE):
        target = os.path.join(directory, os.path.relpath(path, temporary))
        storage.make_folder(os.path.dirname(target))
        storage.rename(path, target)
    storage.remove_folder(temporary)
