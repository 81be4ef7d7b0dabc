"""A synthetic data set in the Open Images format: shapes of several classes on textures.

For the demo and for tests: every box is known exactly, and the same seed draws the same set.
"""

import csv
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import cv2
import numpy as np
from tqdm import tqdm

from tpudet.detection.preparation.sources.box_csv import ALL_COLUMNS
from tpudet.trainkit.errors import UserError, listing
from tpudet.trainkit.files import storage
from tpudet.trainkit.files.claims import Claim

SPLIT_SHARES = {"train": 0.8, "val": 0.2}
# One image in this many has no object, so that a detector learns to predict nothing.
EMPTY_EVERY = 12
# An object is not covered if less than this share of it would stay visible.
MIN_VISIBLE_SHARE = 0.6
_MASK_COLUMNS = (
    *("MaskPath", "ImageID", "LabelName", "BoxID", "BoxXMin", "BoxXMax", "BoxYMin", "BoxYMax"),
    *("PredictedIoU", "Clicks"),
)


class DrawnObject(NamedTuple):
    """One object of an image."""

    label: str  # key of SHAPES
    box: tuple[int, int, int, int]  # y1, x1, y2, x2 in pixels; edges, so x2 - x1 is the width
    occluded: bool  # a later object covers part of it
    visible: np.ndarray  # [h, w] bool; what later objects leave of it


class _Sample(NamedTuple):
    """An image with its objects."""

    image_id: str
    image: np.ndarray  # [h, w, 3] uint8 BGR
    objects: list[DrawnObject]


def _star(points: int, inner: float) -> np.ndarray:
    angles = np.arange(2 * points) * math.pi / points
    radii = np.where(np.arange(2 * points) % 2, inner, 1.0)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _polygon(corners: int) -> np.ndarray:
    return _star(corners, math.cos(math.pi / corners))


_ARM = 0.36
_CROSS = np.array(
    [(-_ARM, -1), (_ARM, -1), (_ARM, -_ARM), (1, -_ARM), (1, _ARM), (_ARM, _ARM)]
    + [(_ARM, 1), (-_ARM, 1), (-_ARM, _ARM), (-1, _ARM), (-1, -_ARM), (-_ARM, -_ARM)]
)
_LABELS = "/sample/"  # what identifiers of classes begin with
# Outlines in a unit circle, [n, 2] x and y, by label; the identifier is "/sample/<label>".
SHAPES: dict[str, np.ndarray] = {
    "disc": _polygon(48),
    "triangle": _polygon(3),
    "square": _polygon(4),
    "star": _star(5, 0.42),
    "cross": _CROSS,
    "stick": np.array([(-1, -0.22), (1, -0.22), (1, 0.22), (-1, 0.22)]),
}


def draw_image(
    rng: np.random.Generator, *, height: int, width: int, num_objects: int
) -> tuple[np.ndarray, list[DrawnObject]]:
    """Draws one image.

    Returns:
        The image [height, width, 3] uint8 BGR, and its objects. There may be fewer than
        `num_objects` where no free place was found.
    """
    image = _texture(rng, height, width, rng.integers(40, 216, 3))
    owner = np.zeros((height, width), np.int32)  # number of the object on top, from 1
    masks: list[np.ndarray] = []
    labels: list[str] = []
    for _ in range(4 * num_objects):
        if len(masks) == num_objects:
            break
        label = str(rng.choice(list(SHAPES)))
        mask = _shape_mask(rng, SHAPES[label], height, width)
        covered = np.where(mask, 0, owner)
        visible = [np.count_nonzero(covered == k + 1) for k in range(len(masks))]
        sizes = [np.count_nonzero(m) for m in masks]
        if any(v < MIN_VISIBLE_SHARE * s for v, s in zip(visible, sizes, strict=True)):
            continue
        masks.append(mask)
        labels.append(label)
        owner[mask] = len(masks)
        around = image[mask].mean(axis=0)
        image[mask] = _texture(rng, height, width, _contrasting(rng, around))[mask]
    objects = [
        DrawnObject(label, _extent(mask), bool((owner[mask] != number).any()), owner == number)
        for number, (label, mask) in enumerate(zip(labels, masks, strict=True), 1)
    ]
    return image, objects


def _texture(rng: np.random.Generator, height: int, width: int, colour: np.ndarray) -> np.ndarray:
    """Returns blobs of two scales and fine noise around one colour."""
    texture = np.zeros((height, width, 3), np.float32) + colour
    for cells, strength in ((4, 30.0), (16, 12.0)):
        coarse = rng.normal(0.0, strength, (cells, cells, 3)).astype(np.float32)
        texture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    texture += rng.normal(0.0, 5.0, (height, width, 3))
    return np.clip(texture, 0, 255).astype(np.uint8)


def _contrasting(rng: np.random.Generator, around: np.ndarray) -> np.ndarray:
    """Returns a colour at least 90 grey levels away from `around` in one channel."""
    while True:
        colour = rng.integers(20, 236, 3)
        if np.abs(colour - around).max() >= 90:
            return colour


def _shape_mask(
    rng: np.random.Generator, outline: np.ndarray, height: int, width: int
) -> np.ndarray:
    """Returns the mask of a rotated and scaled outline that lies fully inside the image."""
    radius = math.exp(rng.uniform(math.log(0.11), math.log(0.32))) * min(height, width)
    angle = rng.uniform(0.0, 2.0 * math.pi)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    centre = rng.uniform((radius + 1, radius + 1), (width - radius - 1, height - radius - 1))
    points = np.round(outline @ turn.T * radius + centre).astype(np.int32)
    mask = np.zeros((height, width), np.uint8)
    cv2.fillPoly(mask, [points], 1)
    return mask.astype(bool)


def _extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def write_sample_set(
    directory: str,
    *,
    num_images: int,
    seed: int,
    with_masks: bool = False,
    progress: Callable[[Any], Any] = tqdm,
) -> dict[str, int]:
    """Writes images, boxes and class list.

    Writes `classes.csv` and, for each split, `<split>/<ImageID>.jpg` and then `<split>_boxes.csv`
    (the 13 columns of Open Images) under `directory`. A box file that exists is therefore whole.
    Images that a larger set left there are removed.

    Args:
        directory: made if it does not exist; that of an earlier sample set is rewritten.
        num_images: of all splits.
        seed: of the drawing; images and boxes are the same with masks and without.
        with_masks: also write `<split>_masks/<ImageID>_<number>.png`, the visible pixels of each
            object, and `<split>_masks.csv` (the 10 columns of Open Images).
        progress: wraps the numbers of a split's images.

    Returns:
        The number of images by split.

    Raises:
        ClaimError: another process writes to the folder, or has taken it over.
        UserError: it has files of these names that are not of a sample set.
        OSError: it cannot be written.
    """
    with Claim(f"{directory}/sample_set.claim.json", output=directory) as claim:
        _refuse_foreign_files(directory, with_masks=with_masks)
        return _write_splits(
            directory,
            num_images=num_images,
            seed=seed,
            with_masks=with_masks,
            progress=progress,
            claim=claim,
        )


def _write_splits(
    directory: str,
    *,
    num_images: int,
    seed: int,
    with_masks: bool,
    progress: Callable[[Any], Any],
    claim: Claim,
) -> dict[str, int]:
    storage.write_text(
        f"{directory}/classes.csv", "".join(f"{_LABELS}{label},{label}\n" for label in SHAPES)
    )
    counts = {}
    for number, (split, share) in enumerate(SPLIT_SHARES.items()):
        counts[split] = round(num_images * share)
        storage.remove_if_there(f"{directory}/{split}_boxes.csv")
        folders = [f"{directory}/{split}"] + [f"{directory}/{split}_masks"] * with_masks
        for folder in folders:
            for path in _drawn_files(folder, split):
                storage.remove(path)
            storage.make_folder(folder)
        images = (
            _draw_sample(np.random.default_rng((seed, number, index)), f"{split}{index:05d}")
            for index in progress(range(counts[split]))
        )
        _write_split(directory, split, images, with_masks=with_masks, claim=claim)
    return counts


def _refuse_foreign_files(directory: str, *, with_masks: bool) -> None:
    """Raises if a file would be replaced or removed that is not of a sample set.

    Images cannot be told from others; they are of a sample set if its class list, the first file
    to be written, is there.
    """
    kinds = ["boxes", *(["masks"] if with_masks else [])]
    tables = [f"{directory}/{split}_{kind}.csv" for split in SPLIT_SHARES for kind in kinds]
    foreign = [path for path in tables if _has_other_labels(path, first_row=1)]
    classes = f"{directory}/classes.csv"
    if _has_other_labels(classes, first_row=0):
        foreign.insert(0, classes)
    if foreign or not storage.is_file(classes):
        for split in SPLIT_SHARES:
            folders = [f"{directory}/{split}", f"{directory}/{split}_masks"][: len(kinds)]
            foreign += [path for folder in folders for path in _drawn_files(folder, split)]
    if foreign:
        raise UserError(
            f"{directory} has files that this command would replace and that no sample set has: "
            f"{listing(foreign)}. Name another folder, or move them away."
        )


def _has_other_labels(path: str, *, first_row: int) -> bool:
    """Whether a file is there that has a row without a label of a sample set, or no row at all."""
    text = storage.read_text(path)
    if text is None:
        return False
    rows = [line.split(",") for line in text.splitlines()]
    is_own = all(any(value.startswith(_LABELS) for value in row) for row in rows[first_row:])
    return len(rows) < max(first_row, 1) or not is_own


def _write_split(
    directory: str, split: str, images: Iterable[_Sample], *, with_masks: bool, claim: Claim
) -> None:
    with ExitStack() as stack:
        boxes = stack.enter_context(storage.whole_file(f"{directory}/{split}_boxes.csv", "w"))
        box_rows = csv.writer(boxes, lineterminator="\n")
        box_rows.writerow(ALL_COLUMNS)
        mask_rows = None
        if with_masks:  # published before the boxes, since the stack ends in reverse order
            masks = stack.enter_context(storage.whole_file(f"{directory}/{split}_masks.csv", "w"))
            mask_rows = csv.writer(masks, lineterminator="\n")
            mask_rows.writerow(_MASK_COLUMNS)
        for sample in images:
            claim.verify()
            quality = [cv2.IMWRITE_JPEG_QUALITY, 92]
            _write_image(f"{directory}/{split}/{sample.image_id}.jpg", sample.image, quality)
            box_rows.writerows(_box_rows(sample))
            if mask_rows is None:
                continue
            for row, drawn in zip(_mask_rows(sample), sample.objects, strict=True):
                pixels = drawn.visible.astype(np.uint8) * 255
                _write_image(f"{directory}/{split}_masks/{row[0]}", pixels, [])
                mask_rows.writerow(row)
        claim.verify()


def _drawn_files(directory: str, split: str) -> list[str]:
    """Lists the images and masks in a folder that have names of a sample set."""
    pattern = re.compile(split + r"\d{5,}(\.jpg|_\d+\.png)")
    names = storage.list_names(directory)
    return [f"{directory}/{name}" for name in names if pattern.fullmatch(name)]


def _draw_sample(rng: np.random.Generator, image_id: str) -> _Sample:
    height, width = (int(side) for side in rng.choice([192, 224, 256, 288, 320], 2))
    is_empty = int(image_id[-5:]) % EMPTY_EVERY == EMPTY_EVERY - 1
    num_objects = 0 if is_empty else int(rng.integers(1, 6))
    image, objects = draw_image(rng, height=height, width=width, num_objects=num_objects)
    return _Sample(image_id, image, objects)


def _write_image(path: str, pixels: np.ndarray, settings: list[int]) -> None:
    encoded = cv2.imencode(os.path.splitext(path)[1], pixels, settings)[1].tobytes()
    with storage.open_file(path, "wb") as file:
        file.write(encoded)


def _box_rows(sample: _Sample) -> Iterator[list[Any]]:
    for drawn in sample.objects:
        label = f"{_LABELS}{drawn.label}"
        edges = _edges(drawn, sample.image)
        yield [sample.image_id, "drawn", label, 1, *edges, int(drawn.occluded), 0, 0, 0, 0]


def _mask_rows(sample: _Sample) -> Iterator[list[Any]]:
    for number, drawn in enumerate(sample.objects):
        name = f"{sample.image_id}_{number}"
        label = f"{_LABELS}{drawn.label}"
        edges = _edges(drawn, sample.image)
        yield [f"{name}.png", sample.image_id, label, name, *edges, 1, ""]


def _edges(drawn: DrawnObject, image: np.ndarray) -> list[str]:
    """XMin, XMax, YMin, YMax as fractions of the image's sides."""
    (y1, x1, y2, x2), (height, width) = drawn.box, image.shape[:2]
    return [f"{edge:.6f}" for edge in (x1 / width, x2 / width, y1 / height, y2 / height)]
