"""A SavedModel and a folder of images -> a predictions file.

It needs no Keras: the SavedModel brings its own preprocessing. Finished parts of the work lie in
`PREDICTIONS.parts` until all are there, so a run that was killed goes on where it was.

An image that cannot be read is left out of the predictions and named under `unreadable` in the
file's metadata.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from detection.image_folder import ImageFile, read_ahead
from detection.saved_detector import (
    Detector,
    SavedDetector,
    load_detector,
)
from detection.submission.predictions_file import (
    ImagePredictions,
    PredictionsError,
    read_predictions,
    write_predictions,
)
from detection.submission.storage import is_file

IMAGES_A_PART = 500  # what a kill costs at most; a few minutes of a slow CPU


class InferenceError(ValueError):
    """What an earlier run left cannot be gone on with; says what to do."""


def predict_images(
    images: Sequence[ImageFile],
    detect: Detector,
    *,
    batch_size: int,
    workers: int,
    on_progress: Callable[[int], object],
) -> tuple[list[ImagePredictions], dict[str, str]]:
    """Predicts images in batches, while `workers` threads read and repair those that follow.

    Args:
        images: to predict.
        detect: of `load_detector`.
        batch_size: images a call; the last call takes what is left.
        workers: threads.
        on_progress: is told the number of images done since it was told last.

    Returns:
        The predictions in the order of `images`, and the reason for each image left out, by file
        name.
    """
    predictions: list[ImagePredictions] = []
    unreadable: dict[str, str] = {}
    waiting: list[tuple[ImageFile, bytes]] = []

    def flush() -> None:
        for (image, _), found in zip(waiting, _detect_each(waiting, detect), strict=True):
            if isinstance(found, str):
                unreadable[os.path.basename(image.path)] = found
            else:
                predictions.append(ImagePredictions(image.image_id, *found))
        on_progress(len(waiting))
        waiting.clear()

    for image, encoded in read_ahead(images, workers=workers, ahead=2 * batch_size + workers):
        if isinstance(encoded, str):
            unreadable[os.path.basename(image.path)] = encoded
            on_progress(1)
            continue
        waiting.append((image, encoded))
        if len(waiting) == batch_size:
            flush()
    if waiting:
        flush()
    return predictions, unreadable


def run_inference(
    *,
    saved: SavedDetector,
    images: Sequence[ImageFile],
    predictions_path: str,
    batch_size: int,
    workers: int,
    images_a_part: int = IMAGES_A_PART,
    discard_foreign_parts: bool = False,
) -> tuple[int, dict[str, str]]:
    """Predicts `images` part by part and joins the parts to the predictions file.

    Parts that an earlier run finished are kept where they come from the same model, image list and
    part size. Others are refused, or thrown away with `discard_foreign_parts`.

    Returns:
        The number of images predicted, and the reason for each image left out, by file name.

    Raises:
        InferenceError: the parts in `<predictions_path>.parts` are of another model or image list.
        PredictionsError: the model gave a class or a number that cannot be.
    """
    key = work_key(saved, images, images_a_part)
    parts = plan_parts(predictions_path, images, images_a_part)
    if discard_foreign_parts:
        _remove_foreign_parts(predictions_path, key)
    finished = {path for path, _ in parts if is_file(path)}
    for path in finished:
        _check_part(path, key)
    tf.io.gfile.makedirs(_parts_directory(predictions_path))
    left = [(path, block) for path, block in parts if path not in finished]
    detect = load_detector(saved) if left else None
    done = len(images) - sum(len(block) for _, block in left)
    with tqdm(total=len(images), initial=done, unit=" images", smoothing=0.05) as bar:
        for path, block in left:
            assert detect is not None
            found, unreadable = predict_images(
                block, detect, batch_size=batch_size, workers=workers, on_progress=bar.update
            )
            metadata = {"key": key, "unreadable": unreadable}
            _write_whole(path, [found], saved, metadata)
    return _join(predictions_path, [path for path, _ in parts], saved)


def plan_parts(
    predictions_path: str, images: Sequence[ImageFile], images_a_part: int
) -> list[tuple[str, Sequence[ImageFile]]]:
    """Returns the file of each part and the images in it."""
    folder = _parts_directory(predictions_path)
    return [
        (os.path.join(folder, f"part-{i:05d}.parquet"), images[start : start + images_a_part])
        for i, start in enumerate(range(0, len(images), images_a_part))
    ]


def work_key(saved: SavedDetector, images: Sequence[ImageFile], images_a_part: int) -> str:
    """Returns a digest that ties a part to its model, image list and part size."""
    names = [image.path for image in images]
    facts = json.dumps([saved.fingerprint, images_a_part, names])
    return hashlib.sha256(facts.encode()).hexdigest()


def _detect_each(
    images: Sequence[tuple[ImageFile, bytes]], detect: Detector
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray] | str]:
    """Detects in a batch; where TensorFlow refuses one image, says why and keeps the others."""
    try:
        return [*detect([encoded for _, encoded in images])]
    except tf.errors.InvalidArgumentError as error:
        if len(images) == 1:
            return [f"TensorFlow cannot decode it: {error.message}"]
        return [found for image in images for found in _detect_each([image], detect)]


def _check_part(path: str, key: str) -> None:
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            found = read_predictions(file, path).metadata.get("key")
    except PredictionsError as error:
        raise InferenceError(f"{error}; --overwrite starts anew") from error
    if found != key:
        raise InferenceError(
            f"{path} was left by a run with another model or another list of images; "
            "--overwrite throws it away, another name for PREDICTIONS keeps it"
        )


def _remove_foreign_parts(target: str, key: str) -> None:
    """Removes all parts of an earlier run where one is of another model or image list."""
    folder = _parts_directory(target)
    try:
        for path in tf.io.gfile.glob(os.path.join(folder, "part-*.parquet")):
            _check_part(path, key)
    except InferenceError:
        tf.io.gfile.rmtree(folder)


def _join(target: str, paths: Sequence[str], saved: SavedDetector) -> tuple[int, dict[str, str]]:
    unreadable: dict[str, str] = {}
    for path in paths:
        with tf.io.gfile.GFile(path, "rb") as file:
            unreadable |= read_predictions(file, path).metadata["unreadable"]

    def blocks() -> Iterator[Sequence[ImagePredictions]]:
        for path in paths:
            with tf.io.gfile.GFile(path, "rb") as file:
                yield read_predictions(file, path).images

    metadata = {"model": saved.metadata, "fingerprint": saved.fingerprint, "unreadable": unreadable}
    count = _write_whole(target, blocks(), saved, metadata)
    tf.io.gfile.rmtree(_parts_directory(target))
    return count, unreadable


def _write_whole(
    path: str,
    blocks: Iterable[Sequence[ImagePredictions]],
    saved: SavedDetector,
    metadata: dict[str, object],
) -> int:
    """Writes a predictions file that has its name only once it is whole."""
    temporary = f"{path}.tmp"
    with tf.io.gfile.GFile(temporary, "wb") as file:
        count = write_predictions(
            file, path, blocks, class_list_text=saved.class_list_text, metadata=metadata
        )
    tf.io.gfile.rename(temporary, path, overwrite=True)
    return count


def _parts_directory(target: str) -> str:
    return f"{target}.parts"
