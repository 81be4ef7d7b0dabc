"""Exports a detector as a SavedModel that takes encoded images and needs nothing of this toolkit.

Preprocessing is that of the evaluation (`trainkit.images.canvas`), so a SavedModel gives the
detections that were evaluated. It has five signatures, each with one `input`, of any batch size B
from 1 up:

- `serving_default`: [B] string, JPEG or PNG files that TensorFlow decodes correctly (see
  `trainkit.images.standardize`).
- `tf_example`: [B] string, tf.Example protos with such a file under `image/encoded`.
- `image_tensor`: [B, h, w, 3] uint8 RGB, all of one size, which are resized.
- `canvas`: [B, H, W, 3] uint8 RGB of the canvas's size, which counts as the original: beyond an
  image it must have the colour `padding_rgb` of the metadata.
- `raw_image_tensor`: the same in float32, normalised: `(pixels / 255 - mean) / std`.

All return `num_detections` [B] int32; `detection_boxes` [B, K, 4] float32, y1 x1 y2 x2 of the
*original* image, clipped to it; `detection_classes` [B, K] int32, 1-based; `detection_scores` [B,
K] float32, in descending order; `image_sizes` [B, 2] float32, height and width of the originals;
and, from a detector with masks, `detection_masks` [B, K, M, M] float32, 0..1 over the box. Rows
from `num_detections` on are zero.

Assets: `classes.csv` as given; `metadata.json`, see `export_saved_model`; and `files.json`, see
`trainkit.saved_model`, which also says when the directory gets its name.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from tpudet.detection.ops.boxes import Padding, padding_rgb
from tpudet.detection.ops.numpy_boxes import boxes_to_original
from tpudet.detection.types import Batch, Detections
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.images.canvas import (
    PlacedImage,
    Resize,
    decode_to_canvas,
    fit,
    resize_to_canvas,
)
from tpudet.trainkit.saved_model import publish_saved_model, require_free

BoxConvention = Literal["normalized", "pixels"]

logger = logging.getLogger(__name__)


def export_saved_model(
    *,
    model: keras.Model,
    predict: Callable[[Batch], Detections],
    canvas_size: tuple[int, int],
    resize: Resize = fit,
    class_list_text: str,
    directory: str,
    metadata: Mapping[str, object],
    boxes: BoxConvention,
    padding: Padding = "black",
    pixel_mean: Sequence[float],
    pixel_std: Sequence[float],
    overwrite: bool = False,
) -> str:
    """Writes the SavedModel that the module describes; returns `directory`.

    Args:
        model: owns every variable that `predict` reads, with the values to export.
        predict: the detector, traced with an unknown batch size.
        canvas_size: height and width of the canvas.
        resize: how images come to it; where it is another than `fit` the metadata should say it:
            `resize`, the kind, and `short_side` and `long_side` of that kind.
        class_list_text: contents of classes.csv.
        directory: to write.
        metadata: JSON values: version, step, git commit; `class_agnostic` and `nms_iou_threshold`,
            by which the detections of several views are merged. metadata.json has them, and
            canvas_size, boxes, padding_rgb, max_detections, classes_sha256 and, with masks,
            mask_side.
        boxes: whether boxes are fractions of the original image in 0..1, or its pixels.
        padding: what `predict` sees beyond an image, see `padded_images`.
        pixel_mean: the model's mean of each colour, for pixels in 0..1.
        pixel_std: its standard deviation of each colour.
        overwrite: replace an existing `directory`.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is false, or it is not a SavedModel.
        ClaimError: another process exports to `directory`.
        ValueError: the class list is not usable, or `metadata` names a key of the list above.
    """
    read_class_list(class_list_text)
    directory = directory.rstrip("/")
    require_free(directory, overwrite=overwrite)
    facts: dict[str, object] = {"canvas_size": list(canvas_size), "boxes": boxes}
    facts["padding_rgb"] = padding_rgb(padding, mean=pixel_mean)
    detector = _Detector(predict, canvas_size, resize, boxes, (pixel_mean, pixel_std), facts.update)
    publish_saved_model(
        model,
        detector.signatures(),
        directory=directory,
        class_list_text=class_list_text,
        metadata=metadata,
        facts=lambda: facts,
        overwrite=overwrite,
    )
    return directory


def _output_facts(outputs: Mapping[str, tf.Tensor]) -> dict[str, object]:
    facts: dict[str, object] = {"max_detections": outputs["detection_scores"].shape[1]}
    if "detection_masks" in outputs:
        facts["mask_side"] = outputs["detection_masks"].shape[2]
    return facts


def _entry_point(detect: Callable[..., dict[str, tf.Tensor]], dtype: tf.DType, shape: Any) -> Any:
    # Without AutoGraph, which nothing needs here, and which took a fifth of an export's time.
    specification = tf.TensorSpec(shape, dtype, name="input")
    return tf.function(detect, input_signature=[specification], autograph=False)


class _Detector:
    """The entry points."""

    def __init__(
        self,
        predict: Callable[[Batch], Detections],
        canvas_size: tuple[int, int],
        resize: Resize,
        boxes: BoxConvention,
        normalization: tuple[Sequence[float], Sequence[float]],
        add_facts: Callable[[Mapping[str, object]], None],
    ):
        self._predict = predict
        self._canvas_size = canvas_size
        self._resize = resize
        self._boxes: BoxConvention = boxes
        self._add_facts = add_facts  # called when the outputs are traced
        self._pixel_mean, self._pixel_std = map(tf.constant, normalization)
        canvas, pair = tf.TensorSpec([None, *canvas_size, 3]), tf.TensorSpec([None, 2])
        # Traced once for all entry points; it is nearly all of the graph.
        self._detect_placed = tf.function(
            self._detect_placed_once,
            input_signature=[PlacedImage(canvas, pair, pair, pair)],
            autograph=False,
        )

    def signatures(self) -> dict[str, Any]:
        """The entry points by the names under which they are served."""
        canvas = [None, *self._canvas_size, 3]
        return {
            "serving_default": _entry_point(self._detect_encoded, tf.string, [None]),
            "tf_example": _entry_point(self._detect_examples, tf.string, [None]),
            "image_tensor": _entry_point(self._detect_images, tf.uint8, [None, None, None, 3]),
            "canvas": _entry_point(self._detect_canvas, tf.uint8, canvas),
            "raw_image_tensor": _entry_point(self._detect_normalized, tf.float32, canvas),
        }

    def _detect_encoded(self, encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(encoded, decode_to_canvas)

    def _detect_examples(self, examples: tf.Tensor) -> dict[str, tf.Tensor]:
        keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        encoded: Any = tf.io.parse_example(examples, keys)["image/encoded"]
        return self._detect(encoded, decode_to_canvas)

    def _detect_images(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect(images, resize_to_canvas)

    def _detect_normalized(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._detect_canvas((images * self._pixel_std + self._pixel_mean) * 255.0)

    def _detect_canvas(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        size = tf.constant([self._canvas_size], tf.float32)
        sizes = tf.repeat(size, tf.shape(images)[0], axis=0)
        return self._detect_float(
            PlacedImage(images, sizes, tf.ones_like(sizes), tf.zeros_like(sizes))
        )

    def _detect(
        self, inputs: tf.Tensor, to_canvas: Callable[..., PlacedImage]
    ) -> dict[str, tf.Tensor]:
        height, width = self._canvas_size
        pair = tf.TensorSpec([2], tf.float32)
        placed = tf.map_fn(
            lambda image: to_canvas(image, height, width, self._resize),
            inputs,
            fn_output_signature=PlacedImage(
                tf.TensorSpec([height, width, 3], tf.uint8), pair, pair, pair
            ),
            parallel_iterations=16,  # images decoded at a time, on the available cores
        )
        return self._detect_float(placed)

    def _detect_float(self, placed: PlacedImage) -> dict[str, tf.Tensor]:
        return self._detect_placed(placed._replace(image=tf.cast(placed.image, tf.float32)))

    def _detect_placed_once(self, placed: PlacedImage) -> dict[str, tf.Tensor]:
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
        outputs = _outputs(self._predict(batch), batch, self._boxes)
        self._add_facts(_output_facts(outputs))
        return outputs


def _outputs(detections: Detections, batch: Batch, boxes: BoxConvention) -> dict[str, tf.Tensor]:
    """Moves detections to the original image; rows beyond the valid ones are zero."""
    original = boxes_to_original(
        detections.boxes,
        scales=batch.scales,
        offsets=batch.offsets,
        sizes=batch.original_sizes,
        xp=keras.ops,
    )
    if boxes == "normalized":
        original /= tf.tile(batch.original_sizes[:, None, :], [1, 1, 2])
    k = tf.shape(detections.scores)[1]
    is_valid = tf.range(k)[None, :] < detections.num_detections[:, None]  # [B, K]
    outputs = {
        "num_detections": tf.cast(detections.num_detections, tf.int32),
        "detection_boxes": tf.where(is_valid[:, :, None], original, 0.0),
        "detection_classes": tf.where(is_valid, tf.cast(detections.classes, tf.int32), 0),
        "detection_scores": tf.where(is_valid, tf.cast(detections.scores, tf.float32), 0.0),
        "image_sizes": batch.original_sizes,
    }
    if detections.masks is not None:
        outputs["detection_masks"] = tf.where(
            is_valid[:, :, None, None], tf.cast(detections.masks, tf.float32), 0.0
        )
    return outputs


def round_up_canvas(canvas_size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Rounds height and width up to multiples of the stride, and logs it if they change."""
    height, width = (-(-side // stride) * stride for side in canvas_size)
    if (height, width) != canvas_size:
        logger.info(
            "Canvas %dx%d -> %dx%d: rounded up to multiples of %d, the stride of the model",
            *canvas_size,
            height,
            width,
            stride,
        )
    return height, width
