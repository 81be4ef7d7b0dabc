"""Exports a classifier as a SavedModel that takes encoded images and needs nothing of this toolkit.

Preprocessing is that of the evaluation, so a SavedModel gives the probabilities that were
evaluated.
"""

from collections.abc import Callable, Mapping
from functools import partial

import keras
import tensorflow as tf

from tpudet.classification.data.samples import evaluation_crop
from tpudet.classification.types import Batch, Predictions
from tpudet.trainkit.class_list import read_class_list
from tpudet.trainkit.images.crops import decode_crop, resize_crop
from tpudet.trainkit.saved_model import publish_saved_model, require_free


def export_saved_model(
    *,
    model: keras.Model,
    predict: Callable[[Batch], Predictions],
    loss: str,
    image_size: tuple[int, int],
    center_crop: float,
    class_list_text: str,
    directory: str,
    metadata: Mapping[str, object],
    overwrite: bool,
) -> str:
    """Writes a SavedModel with two signatures, any batch size B from 1 up.

    - `serving_default`: `input`, [B] string, JPEG or PNG files that TensorFlow decodes correctly
      (see `trainkit.images.standardize`).
    - `image_tensor`: `input`, [B, h, w, 3] uint8 RGB, all of one size.

    Both return `probabilities` [B, C] float32 and `classes` [B] int32, 1-based, the most probable.

    Assets: `classes.csv` as given; `metadata.json`: `metadata`, `task`, `loss` and `image_size`.

    Args:
        model: owns every variable that `predict` reads, with the values to export.
        predict: the classifier, traced with an unknown batch size.
        loss: softmax or sigmoid; of a sigmoid an image is of all classes from 0.5 on.
        image_size: H and W.
        center_crop: side of the crop that is seen over that of the largest that fits.
        class_list_text: contents of classes.csv.
        directory: to write.
        metadata: JSON values: version, step, git commit.
        overwrite: replace an existing `directory`.

    Returns:
        `directory`.

    Raises:
        FileExistsError: `directory` exists and `overwrite` is false, or it is not a SavedModel.
        ClaimError: another process exports to `directory`.
    """
    num_classes = len(read_class_list(class_list_text))
    directory = directory.rstrip("/")
    require_free(directory, overwrite=overwrite)
    classifier = _Classifier(predict, image_size, center_crop, num_classes)
    publish_saved_model(
        model,
        {"serving_default": classifier.encoded, "image_tensor": classifier.image_tensor},
        directory=directory,
        class_list_text=class_list_text,
        metadata=metadata,
        facts=lambda: {
            "task": "classification",
            "loss": loss,
            "image_size": list(image_size),
        },
        overwrite=overwrite,
    )
    return directory


class _Classifier:
    """The two entry points."""

    def __init__(
        self,
        predict: Callable[[Batch], Predictions],
        image_size: tuple[int, int],
        center_crop: float,
        num_classes: int,
    ):
        self._predict = predict
        self._image_size = image_size
        self._choose = partial(evaluation_crop, image_size=image_size, share=center_crop)
        self._num_classes = num_classes
        # Traced once for both entry points; it is nearly all of the graph.
        self._classify_images = tf.function(
            self._classify_images_once,
            input_signature=[tf.TensorSpec([None, *image_size, 3], tf.uint8)],
            autograph=False,
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="input")], autograph=False)
    def encoded(self, encoded: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._classify(
            encoded, lambda image: decode_crop(image, self._choose, *self._image_size)
        )

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, name="input")],
        autograph=False,
    )
    def image_tensor(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        def center(image: tf.Tensor) -> tf.Tensor:
            return resize_crop(image, self._choose(tf.shape(image)[:2]), *self._image_size)

        return self._classify(images, center)

    def _classify(
        self, inputs: tf.Tensor, center: Callable[[tf.Tensor], tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        return self._classify_images(
            tf.map_fn(
                center,
                inputs,
                fn_output_signature=tf.TensorSpec([*self._image_size, 3], tf.uint8),
                parallel_iterations=16,  # images decoded at a time, on the available cores
            )
        )

    def _classify_images_once(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        b = tf.shape(images)[0]
        batch = Batch(images, tf.zeros([b, self._num_classes]), tf.range(tf.cast(b, tf.int64)))
        probabilities = tf.cast(self._predict(batch).probabilities, tf.float32)
        classes = tf.argmax(probabilities, axis=-1, output_type=tf.int32) + 1
        return {"probabilities": probabilities, "classes": classes}
