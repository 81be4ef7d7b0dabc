"""Writes every predicted image with its detections drawn in."""

import os
from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from tqdm import tqdm

from tpudet.detection.inference.predictions import ImagePredictions
from tpudet.detection.inference.predictions_file import open_predictions
from tpudet.detection.inspection.objects import InspectionError
from tpudet.detection.ops.drawing import draw_boxes, draw_masks
from tpudet.detection.ops.numpy_masks import decode_rle
from tpudet.trainkit.class_list import ClassEntry, read_class_list
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.listed_files import listed_files, refuse_unlisted
from tpudet.trainkit.image_folder import ImageFile, read_ahead
from tpudet.trainkit.images.standardize import decode_rgb
from tpudet.trainkit.pages.drawing import class_colour

_QUALITY = 92  # of a JPEG
_AHEAD = 16  # images read before they are drawn


def check_image_folder(directory: str, images: Sequence[ImageFile]) -> None:
    """Refuses a folder for drawings.

    Raises:
        InspectionError: it is a file, or drawings would replace some of the images themselves.
        UserError: they would replace other files that no drawing made.
    """
    if storage.exists(directory) and not storage.is_folder(directory):
        raise InspectionError(f"--save_images {directory} is a file; name a folder")
    originals = {os.path.realpath(image.path) for image in images}
    names = [_drawing_name(image) for image in images]
    drawings = [os.path.join(directory, name) for name in names]
    replaced = [path for path in drawings if os.path.realpath(path) in originals]
    if replaced:
        raise InspectionError(
            f"--save_images {directory} would replace {len(replaced)} of the images to predict, "
            f"such as {replaced[0]}; name another folder"
        )
    refuse_unlisted(directory, names, argument="--save_images")


def _drawing_name(image: ImageFile) -> str:
    return f"{image.image_id}.jpg"


def save_images(
    predictions: str,
    images: Sequence[ImageFile],
    directory: str,
    *,
    min_score: float,
    workers: int,
) -> str:
    """Writes `<image id>.jpg` for every image of a predictions file, in its own size.

    Args:
        predictions: path of the file.
        images: those that it was made of.
        directory: folder to write to, see `listed_files`: the drawings of an earlier run are
            removed, other files are left alone.
        min_score: detections with lower scores are not drawn, 0..1.
        workers: reading threads.

    Returns:
        The summary.

    Raises:
        ClaimError: another process draws into the folder, or has taken it over.
        UserError: drawings would replace files that no drawing made.
    """
    files = {image.image_id: image for image in images}
    with storage.open_file(predictions, "rb") as stream:
        stored = open_predictions(stream, predictions)
        classes = read_class_list(stored.class_list_text)
        wanted = [files[image_id] for image_id in stored.image_ids()]
        found: Iterator[ImagePredictions] = (image for block in stored.blocks() for image in block)
        read = read_ahead(wanted, workers=workers, ahead=_AHEAD)
        progress = tqdm(read, total=len(wanted), unit="image", desc="drawing", delay=3)
        names = [_drawing_name(file) for file in wanted]
        lost = 0
        with listed_files(directory, names, argument="--save_images") as write:
            for detections, (file, encoded) in zip(found, progress, strict=True):
                if isinstance(encoded, str):
                    lost += 1  # as a URL may be, which is fetched again
                    continue
                drawn = _draw(decode_rgb(encoded), detections, classes, min_score)
                bgr = cv2.cvtColor(drawn, cv2.COLOR_RGB2BGR)
                options = [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
                write(_drawing_name(file), cv2.imencode(".jpg", bgr, options)[1].tobytes())
    note = f"; {lost} could not be read again" if lost else ""
    return f"{directory}: {len(wanted) - lost} images with their detections{note}"


def _draw(
    pixels: np.ndarray,
    found: ImagePredictions,
    classes: Sequence[ClassEntry],
    min_score: float,
) -> np.ndarray:
    rows = np.flatnonzero(found.scores >= min_score)
    labels, scores = found.labels[rows].tolist(), found.scores[rows].tolist()
    colours = [class_colour(label) for label in labels]
    boxes = found.boxes_normalized[rows][:, [1, 0, 3, 2]] * np.tile(np.array(pixels.shape[:2]), 2)
    texts = [f"{classes[k - 1].name} {s:.2f}" for k, s in zip(labels, scores, strict=True)]
    if found.masks is not None:
        masks = (decode_rle(found.masks[row]) for row in rows[::-1])  # the best is on top
        pixels = draw_masks(pixels, zip(masks, colours[::-1], strict=True))
    return draw_boxes(pixels, boxes, texts, colours)
