"""A detector small enough to export in a test: real variables, real detections, no training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import keras
import numpy as np
import pytest

from detection.export import export_saved_model
from detection.types import Batch, Detections

ops: Any = keras.ops  # its annotations admit None nearly everywhere
CLASS_LIST = "/m/01,cat\n/m/02,dog\n/m/03,sheep\n"
STRIDE = 16
MAX_DETECTIONS = 7


class StandIn(NamedTuple):
    model: keras.Model
    predict: Callable[[Batch], Detections]


@pytest.fixture(scope="session")
def stand_in() -> StandIn:
    """One convolution that says a class, a score and a box for each cell of 16x16 px."""
    conv2d: Any = keras.layers.Conv2D  # its annotations admit names of initializers only
    convolution = conv2d(
        8,
        STRIDE,
        strides=STRIDE,
        kernel_initializer=keras.initializers.RandomNormal(0, 0.1, seed=3),
    )
    model = keras.Sequential([keras.Input((None, None, 3)), convolution])

    def predict(batch: Batch) -> Detections:
        answers = model(ops.cast(batch.images, "float32") / 255.0 - 0.5)
        rows, columns = answers.shape[1:3]
        cells = np.moveaxis(np.mgrid[:rows, :columns], 0, -1).reshape(-1, 2) * float(STRIDE)
        answers = ops.reshape(answers, (-1, rows * columns, 8))
        centres = cells + STRIDE * ops.sigmoid(answers[..., 3:5])
        sides = 4.0 * STRIDE * ops.sigmoid(answers[..., 5:7])
        boxes = ops.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)
        scores, places = ops.top_k(ops.sigmoid(answers[..., 7]), MAX_DETECTIONS)
        classes = ops.cast(ops.argmax(answers[..., :3], axis=-1), "int32") + 1
        return Detections(  # rows beyond num_detections are not zero, as a trap
            boxes=ops.take_along_axis(boxes, places[..., None], axis=1),
            scores=scores,
            classes=ops.take_along_axis(classes, places, axis=1),
            num_detections=ops.sum(ops.cast(scores > 0.55, "int32"), axis=1),
        )

    return StandIn(model, predict)


def make_photo(height: int, width: int, seed: int) -> np.ndarray:
    """[h, w, 3] uint8: soft blotches of colour, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).uniform(0, 255, (5, 6, 3)).astype(np.float32)
    return (
        cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype("u1")
    )


@pytest.fixture(scope="session")
def photos() -> dict[str, np.ndarray]:
    """Pictures by id: larger and smaller than the canvas, wide, tall and square."""
    sizes = {"wide": (90, 200), "tall": (150, 70), "square": (64, 64), "small": (40, 33)}
    return {name: make_photo(*size, seed) for seed, (name, size) in enumerate(sizes.items())}


@pytest.fixture(scope="session")
def jpegs(photos: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {
        name: cv2.imencode(".jpg", photo[..., ::-1])[1].tobytes() for name, photo in photos.items()
    }


@pytest.fixture(scope="session")
def saved_model(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel of the stand-in, canvas 64x96, normalised boxes."""
    directory = tmp_path_factory.mktemp("models") / "one"
    export_saved_model(
        model=stand_in.model,
        predict=stand_in.predict,
        canvas_size=(64, 96),
        class_list_text=CLASS_LIST,
        directory=str(directory),
        metadata={"version": "stand_in", "step": 12},
        boxes="normalized",
    )
    return directory
