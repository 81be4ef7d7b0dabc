"""Sample images of a prepared set: chooses them and draws thumbnails with boxes and masks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tpudet.detection.ops.drawing import draw_boxes, draw_masks
from tpudet.detection.preparation.records.prepared_set import PreparedSet
from tpudet.detection.preparation.report.set_statistics import SplitColumns, read_example
from tpudet.detection.preparation.sources.annotations import distinct_pairs
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.opencv_decode import decode_fitting_mask
from tpudet.trainkit.images.standardize import ImageError, decode_rgb
from tpudet.trainkit.pages.drawing import class_colour, thumbnail_jpeg

# Of all thumbnails together; base64 turns them into 3.5 MB in the page.
SAMPLE_BYTES = 2_600_000


class SampleImage(NamedTuple):
    """A thumbnail of one image of the set."""

    split: str
    source_id: str
    jpeg: bytes  # with the boxes drawn
    height: int  # pixels of the thumbnail
    width: int
    original: tuple[int, int]  # height and width of the image in the set
    classes: tuple[tuple[int, int], ...]  # (class id, number of boxes), most boxes first


def choose_samples(columns: Sequence[SplitColumns], count: int) -> list[tuple[int, int]]:
    """Chooses images that show as many classes as possible; deterministic.

    Each image is the one with the most classes not yet shown (greedy maximum coverage, at least
    63 % of the optimum). Once all classes are shown, they count as not shown again. Ties go to the
    split with the fewest samples, then to a fixed random order.

    Args:
        columns: of every split.
        count: number of images.

    Returns:
        At most `count` pairs (split, row in the split), each once; images without boxes are not
        chosen.
    """
    split_sizes = [len(split.names) for split in columns]
    first_images = np.cumsum([0, *split_sizes])
    splits = np.repeat(np.arange(len(columns)), split_sizes)
    pairs = [distinct_pairs(split.box_images, split.class_ids) for split in columns]
    images = np.concatenate([p[0] + first for p, first in zip(pairs, first_images, strict=False)])
    classes = np.concatenate([p[1] for p in pairs])
    by_class = np.argsort(classes, kind="stable")
    class_bounds = np.searchsorted(classes[by_class], np.arange(classes.max(initial=0) + 2))
    present = np.bincount(images, minlength=len(splits))  # classes of each image
    ranks = np.random.default_rng(0).permutation(len(splits))
    gains, seen = present.copy(), set()
    samples_of_split = np.zeros(len(columns), dtype=np.int64)
    chosen: list[tuple[int, int]] = []
    while len(chosen) < count and present.any():
        if gains.max() <= 0:
            gains, seen = present.copy(), set()
        best = np.flatnonzero(gains == gains.max())
        image = best[np.lexsort((ranks[best], samples_of_split[splits[best]]))[0]]
        for class_id in classes[slice(*np.searchsorted(images, (image, image + 1)))].tolist():
            if class_id not in seen:
                gains[images[by_class[slice(*class_bounds[class_id : class_id + 2])]]] -= 1
                seen.add(class_id)
        samples_of_split[splits[image]] += 1
        chosen.append((int(splits[image]), int(image - first_images[splits[image]])))
        present[image] = 0
    return chosen


def draw_sample(
    prepared: PreparedSet, columns: Sequence[SplitColumns], place: tuple[int, int], max_bytes: int
) -> SampleImage:
    """Reads one image and draws its boxes and masks, each in the colour of its class.

    Args:
        prepared: the set.
        columns: of its splits.
        place: split and row, as `choose_samples` returns them.
        max_bytes: size limit of the JPEG; the thumbnail is scaled down to fit.

    Raises:
        UserError: the image cannot be decoded.
    """
    split, split_columns = prepared.splits[place[0]], columns[place[0]]
    example = read_example(split, split_columns, place[1])
    source_id = example.source_id.numpy().decode(errors="replace")
    try:
        image = decode_rgb(example.encoded.numpy())
    except ImageError as error:
        raise UserError(
            f"Image {source_id} of {split.manifest_path} cannot be decoded: {error}. Write the "
            "set again with --overwrite."
        ) from error
    boxes, class_ids = example.boxes_normalized.numpy(), example.labels.numpy()
    masks = [] if example.masks is None else example.masks.numpy().tolist()
    if len(masks) == len(class_ids):
        image = _draw_masks(image, masks, class_ids)
    (height, width), jpeg = thumbnail_jpeg(
        image, max_bytes, lambda small: _draw_boxes(small, boxes, class_ids)
    )
    ids, counts = np.unique(class_ids, return_counts=True)
    order = np.lexsort((ids, -counts))
    return SampleImage(
        split=split.name,
        source_id=source_id,
        jpeg=jpeg,
        height=height,
        width=width,
        original=image.shape[:2],
        classes=tuple(zip(ids[order].tolist(), counts[order].tolist(), strict=True)),
    )


def _draw_masks(image: np.ndarray, encoded: Sequence[bytes], class_ids: np.ndarray) -> np.ndarray:
    """Draws the masks that have the size of the image."""
    masks = (decode_fitting_mask(mask, image.shape[:2]) for mask in encoded)
    colours = map(class_colour, class_ids.tolist())
    return draw_masks(
        image,
        ((mask, colour) for mask, colour in zip(masks, colours, strict=True) if mask is not None),
    )


def _draw_boxes(
    image: np.ndarray, boxes_normalized: np.ndarray, class_ids: np.ndarray
) -> np.ndarray:
    areas = np.prod(boxes_normalized[:, 2:] - boxes_normalized[:, :2], axis=1)
    order = np.argsort(areas, kind="stable")  # the smallest is drawn last, on top
    colours = [class_colour(int(class_id)) for class_id in class_ids[order]]
    boxes = boxes_normalized[order] * np.tile(image.shape[:2], 2)
    # Labels would cover the objects at this size; the page has a legend of the colours.
    return draw_boxes(image, boxes, [""] * len(boxes), colours)
