"""Generates submissions of models that see the same objects, for the benchmarks of merging."""

import numpy as np

from tpudet.detection.submission.errors import NO_BAD_ROWS
from tpudet.detection.submission.fusion.blocks import Block, ScannedRows, SubmissionFile
from tpudet.detection.submission.fusion.kernel import load_kernel
from tpudet.detection.submission.open_images_csv import HEADER_LINE

NUM_LABELS = 500
_OBJECTS = 40  # per image; each model finds each of them once, the rest is clutter
# Clustered: objects per image, and the share of predictions that are of one of them.
_CLUSTERED_OBJECTS, _CLUSTERED_SHARE = 12, 0.8


def generate(
    path: str,
    num_images: int,
    num_predictions: int,
    num_classes: int,
    model: int,
    *,
    clustered: bool = False,
) -> None:
    """Writes a submission. Objects depend on the image alone, predictions on the model too."""
    labels = [b"/m/0%05x" % (7919 * k + 11) for k in range(NUM_LABELS)]
    print_rows = load_kernel().print_rows
    with open(path, "wb") as file:
        file.write(HEADER_LINE.encode())
        for first in range(0, num_images, 256):
            images = np.arange(first, min(first + 256, num_images))
            ids = b"".join(b"%016x" % (int(i) * 2654435761) for i in images)
            draw = _clustered_predictions if clustered else _predictions
            numbers, scores, boxes = draw(images, num_predictions, num_classes, model)
            rows = ScannedRows(
                image_ends=num_predictions * np.arange(len(images) + 1),
                label_files=np.zeros(len(scores), np.int32),
                label_starts=np.zeros(len(scores), np.int64),
                label_lengths=np.zeros(len(scores), np.int32),
                label_numbers=numbers,
                scores=scores,
                boxes=boxes,
            )
            written = np.ones(len(images), np.uint8)
            file.write(print_rows(_block_of_ids(ids, len(images)), written, rows, labels, 5, 5))


def _block_of_ids(ids: bytes, num_images: int) -> Block:
    """Returns a block whose only text is the ids, of 16 bytes each."""
    starts = 16 * np.arange(num_images)
    zeros = np.zeros(num_images, np.int64)
    data = np.frombuffer(ids, np.uint8)
    no_rows = np.zeros((0, 5), np.int64)
    source = SubmissionFile("", data, no_rows, np.zeros(0, "S16"), NO_BAD_ROWS, None)
    ends = np.arange(num_images + 1)
    return Block((source,), zeros, starts, starts + 16, ends, zeros, zeros, zeros, zeros)


def _objects(
    image: int, num_objects: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The image's classes, and class, upper left corner and sides of each object in it."""
    draws = np.random.default_rng(image)
    classes = draws.permutation(NUM_LABELS)[:num_classes]
    of_object = classes[draws.integers(0, num_classes, num_objects)]
    sides = draws.uniform(0.03, 0.4, (num_objects, 2))
    return classes, of_object, draws.uniform(0, 1 - sides), sides


def _predictions(
    images: np.ndarray, num_predictions: int, num_classes: int, model: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label numbers [n], scores [n] and boxes [n, 4] of n = images x num_predictions."""
    numbers, scores, boxes = [], [], []
    for image in images.tolist():
        own = np.random.default_rng((image, model))
        classes, of_object, corners, sides = _objects(image, _OBJECTS, num_classes)
        corners = corners + own.normal(0, 0.05, (_OBJECTS, 2)) * sides
        clutter_sides = own.uniform(0.03, 0.4, (num_predictions, 2))
        clutter_corners = own.uniform(0, 1 - clutter_sides)
        order = np.sort(own.beta(0.5, 2.0, num_predictions))[::-1]
        number = np.concatenate([of_object, classes[own.integers(0, num_classes, num_predictions)]])
        corners = np.concatenate([corners, clutter_corners])[:num_predictions]
        sides = np.concatenate([sides, clutter_sides])[:num_predictions]
        boxes.append(np.concatenate([corners, corners + sides], axis=1).clip(0, 1))
        numbers.append(number[:num_predictions])
        scores.append(order)
    return (
        np.concatenate(numbers).astype(np.int32),
        np.concatenate(scores),
        np.concatenate(boxes),
    )


def _clustered_predictions(
    images: np.ndarray, num_predictions: int, num_classes: int, model: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As `_predictions`, but most are of few objects: the hard case of suppression."""
    numbers, scores, boxes = [], [], []
    for image in images.tolist():
        own = np.random.default_rng((image, model))
        classes, of_object, corners, sides = _objects(image, _CLUSTERED_OBJECTS, num_classes)
        found = own.integers(0, _CLUSTERED_OBJECTS, num_predictions)
        is_clutter = own.random(num_predictions) >= _CLUSTERED_SHARE
        noise = own.normal(0, 0.05, (2, num_predictions, 2))
        own_sides = sides[found] * np.exp(noise[0])
        own_corners = corners[found] + noise[1] * own_sides
        number = of_object[found]
        clutter_sides = own.uniform(0.03, 0.4, (num_predictions, 2))
        own_corners[is_clutter] = own.uniform(0, 1 - clutter_sides)[is_clutter]
        own_sides[is_clutter] = clutter_sides[is_clutter]
        number[is_clutter] = classes[own.integers(0, num_classes, num_predictions)][is_clutter]
        boxes.append(np.concatenate([own_corners, own_corners + own_sides], axis=1).clip(0, 1))
        numbers.append(number)
        scores.append(np.sort(own.beta(0.5, 2.0, num_predictions))[::-1])
    return (
        np.concatenate(numbers).astype(np.int32),
        np.concatenate(scores),
        np.concatenate(boxes),
    )
