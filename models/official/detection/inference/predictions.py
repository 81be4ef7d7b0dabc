"""The predictions of images, as predictions files store them, and what makes them valid."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpudet.detection.ops.numpy_masks import MAX_SIDE, Rle, check_rle, is_mask_size
from tpudet.trainkit.errors import UserError, shorten
from tpudet.trainkit.images.pixel_limit import MAX_PIXELS

FORMAT = "tpudet predictions 1"


class PredictionsError(UserError):
    """The file is not a predictions file, or its contents contradict each other."""


class ImagePredictions(NamedTuple):
    """The valid detections of one image, n of them in descending order of score."""

    image_id: str  # file name without its extension
    labels: np.ndarray  # [n] int32, 1-based row of the class list
    scores: np.ndarray  # [n] float32 in 0..1
    boxes_normalized: np.ndarray  # [n, 4] float32, x1 y1 x2 y2, fractions of the upright image
    masks: list[Rle] | None = None  # n masks of the whole image; None from a detector without masks


class StoredPredictions(NamedTuple):
    """A predictions file that is read block by block, while it is open."""

    class_list_text: str
    metadata: dict
    num_images: int
    image_ids: Callable[[], list[str]]  # reads nothing else
    blocks: Callable[[], Iterator[Sequence[ImagePredictions]]]


def digest_image_list(image_ids: Sequence[str]) -> dict[str, Any]:
    """Returns the number of images and a digest of their ids, to compare between machines."""
    digest = hashlib.sha256("\n".join(image_ids).encode())
    return {"count": len(image_ids), "sha256": digest.hexdigest()}


def check_blocks(
    blocks: Iterable[Sequence[ImagePredictions]], num_classes: int
) -> Iterator[Sequence[ImagePredictions]]:
    """Yields the blocks; refuses repeated images and wrong values."""
    seen: set[str] = set()
    with_masks: set[bool] = set()
    for block in blocks:
        for image in block:
            problem = _problem(image, num_classes)
            with_masks.add(image.masks is not None)
            if image.image_id in seen:
                problem = "appears twice"
            elif len(with_masks) > 1:
                problem = "differs from the others in having masks or not"
            if problem:
                raise PredictionsError(f"image {image.image_id!r} {problem}")
            seen.add(image.image_id)
        yield block


def _problem(image: ImagePredictions, num_classes: int) -> str:
    """Describes the faults of an image's predictions; empty if they are usable."""
    shapes = image.labels.shape, image.scores.shape, image.boxes_normalized.shape
    n = len(image.labels)
    if shapes != ((n,), (n,), (n, 4)):
        return f"has labels, scores and boxes of shapes {shapes}"
    if n and not (image.labels.min() >= 1 and image.labels.max() <= num_classes):
        wrong = sorted({int(k) for k in image.labels if not 1 <= k <= num_classes})
        return f"has class ids {wrong}; those of the class list are 1 to {num_classes}"
    if not (np.isfinite(image.scores).all() and np.isfinite(image.boxes_normalized).all()):
        return "has scores or boxes that are not finite"
    if image.masks is None:
        return ""
    if len(image.masks) != n:
        return f"has {len(image.masks)} masks for {n} boxes"
    try:
        for mask in image.masks:
            if not is_mask_size(mask["size"]):
                return (
                    f"has a mask of size {shorten(str(mask['size']), 40)}; height and width are "
                    f"whole numbers from 1 to {MAX_SIDE:,}, with at most {MAX_PIXELS:,} pixels"
                )
            height, width = mask["size"]
            check_rle(mask["counts"], height=height, width=width)
    except (KeyError, TypeError, ValueError) as error:
        return f"has a mask that {error}"
    return ""
