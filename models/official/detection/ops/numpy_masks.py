"""Instance masks in NumPy: COCO run-length encoding, and pasting masks into their image."""

import math
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from tpudet.trainkit.images.pixel_limit import MAX_PIXELS

MAX_SIDE = (1 << 16) - 1  # pixels of a mask, as submissions may have them
_BLOCK_LETTERS = 1 << 18  # decoded at once: some hundred bytes each
Rle = Any  # {"size": [height, width], "counts": bytes or str}, as pycocotools takes it


def run_lengths(counts: bytes | str) -> np.ndarray:
    """Decodes COCO's compressed counts, which pycocotools does without any check.

    Five bits per letter, lowest first; from the fourth run on, differences to the run before last.

    Returns:
        [runs] int64, outside and inside by turns; may be negative if the counts are damaged.

    Raises:
        ValueError: a letter is not one of them, or the last number is cut off.
    """
    data = counts.encode() if isinstance(counts, str) else counts
    letters = np.frombuffer(data, np.uint8)
    if not len(letters) or letters.min() < 48 or letters.max() > 111 or letters[-1] - 48 & 32:
        raise ValueError("is not a COCO run-length encoding")
    parts, start = [], 0
    while start < len(letters):
        values, length = _numbers(letters[start : start + _BLOCK_LETTERS])
        parts.append(values)
        start += length
    values = np.concatenate(parts)
    values[1::2] = np.cumsum(values[1::2])
    values[2::2] = np.cumsum(values[2::2])
    return values


def _numbers(block: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the numbers that end in a block of letters, int64, and their length in letters."""
    letters = block - 48
    ends = np.flatnonzero(letters < 32)
    starts = np.concatenate([[0], ends[:-1] + 1])
    sizes = ends - starts + 1
    if not len(ends) or sizes.max() > 7:
        raise ValueError("is not a COCO run-length encoding: a number is too long")
    values = letters[starts].astype(np.int64) & 31
    for place in range(1, int(sizes.max())):  # most numbers are of one letter or two
        rows = np.flatnonzero(sizes > place)
        values[rows] |= (letters[starts[rows] + place].astype(np.int64) & 31) << 5 * place
    negative = np.flatnonzero(letters[ends] & 16)
    values[negative] -= 1 << 5 * sizes[negative]
    return values, int(ends[-1]) + 1


def check_rle(counts: bytes | str, *, height: int, width: int) -> None:
    """Raises a ValueError if counts are not those of a mask of this size."""
    _checked_runs(counts, height, width)


def _checked_runs(counts: bytes | str, height: int, width: int) -> np.ndarray:
    runs, size = run_lengths(counts), height * width
    # Each run by itself too, for the sum of many long ones begins again at 2^64; without a sign
    # negative ones are the longest.
    if (runs.view(np.uint64) > size).any() or runs.sum() != size:
        raise ValueError(f"is not the mask of an image {width} wide and {height} high")
    return runs


def is_mask_size(size: Any) -> bool:
    """Whether this is the `size` of run lengths: height and width that submissions may have."""
    return (
        isinstance(size, list | tuple)
        and [type(side) for side in size] == [int, int]
        and all(1 <= side <= MAX_SIDE for side in size)
        and size[0] * size[1] <= MAX_PIXELS
    )


def encode_rle(mask: np.ndarray) -> Rle:
    """Encodes a mask [h, w], bool or 0 and 1; `counts` is a str."""
    encoded = coco_mask.encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(mask.shape), "counts": encoded["counts"].decode()}


def decode_rle(rle: Rle) -> np.ndarray:
    """Decodes a mask, [h, w] bool; raises what `check_rle` does."""
    height, width = rle["size"]
    runs = _checked_runs(rle["counts"], height, width)
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape(width, height).T  # COCO counts down the columns


def mask_area(rle: Rle) -> int:
    """Returns the number of pixels inside a mask; pycocotools' overflows for lists on NumPy 2."""
    return int(run_lengths(rle["counts"])[1::2].sum())


def mask_box(rle: Rle) -> tuple[float, float, float, float]:
    """Returns y1 x1 y2 x2 around a mask that is not empty, fractions of the image."""
    height, width = rle["size"]
    box: Any = coco_mask.toBbox(rle)
    x, y, w, h = box.tolist()
    return y / height, x / width, (y + h) / height, (x + w) / width


def paste_mask(mask: np.ndarray, box: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """Pastes the mask of a box into its image, bilinear, as Mask R-CNN does (arXiv 1703.06870).

    Args:
        mask: [M, M] float, 0..1, over the box.
        box: [4] y1 x1 y2 x2, pixels of the image.
        height: pixels of the image.
        width: pixels of the image.

    Returns:
        [height, width] bool: at least 0.5 at the centre of the pixel.
    """
    rows, columns, inside = _paste(mask, box, height=height, width=width)
    pasted = np.zeros((height, width), bool)
    pasted[rows, columns] = inside
    return pasted


def paste_rle(mask: np.ndarray, box: np.ndarray, *, height: int, width: int) -> Rle:
    """Returns `encode_rle(paste_mask(...))` at the cost of the box instead of the image's."""
    rows, columns, inside = _paste(mask, box, height=height, width=width)
    return encode_part(inside, top=rows.start, left=columns.start, height=height, width=width)


def encode_part(part: np.ndarray, *, top: int, left: int, height: int, width: int) -> Rle:
    """Encodes a mask that is empty but for a part, [h, w] bool, whose corner is (top, left)."""
    framed = np.zeros((part.shape[1], part.shape[0] + 2), bool)
    framed[:, 1:-1] = part.T  # COCO counts down the columns
    column, row = np.nonzero(framed[:, 1:] != framed[:, :-1])  # starts and ends of runs by turns
    edges = (left + column) * height + top + row
    # A run to the bottom continues where the next column begins with one.
    joins = np.flatnonzero(edges[1:-1:2] == edges[2::2])
    edges = np.delete(edges, np.concatenate([2 * joins + 1, 2 * joins + 2]))
    return encode_edges(edges, height=height, width=width)


def encode_edges(edges: np.ndarray, *, height: int, width: int) -> Rle:
    """Encodes a mask by the pixels, counted down the columns, where it begins and ends by turns.

    Args:
        edges: [n] int64, in ascending order, from 0 to `height * width`.
        height: pixels of the image.
        width: pixels of the image.
    """
    counts = np.diff(edges, prepend=0, append=height * width).tolist()
    if not counts[-1] and len(counts) > 1:
        counts.pop()
    plain: Any = {"size": [height, width], "counts": counts}  # the stubs forbid a list
    encoded: Any = coco_mask.frPyObjects(plain, height, width)
    return {"size": [height, width], "counts": encoded["counts"].decode()}


def _paste(
    mask: np.ndarray, box: np.ndarray, *, height: int, width: int
) -> tuple[slice, slice, np.ndarray]:
    """The rows and columns of the image that a box touches, and its mask there."""
    y1, x1, y2, x2 = (float(side) for side in box)
    # Outside the box the mask is 0: two cells around it are enough for any pixel.
    framed = np.zeros((mask.shape[0] + 4, mask.shape[1] + 4))
    framed[2:-2, 2:-2] = mask
    rows, low, share = _cells(y1, y2, height, mask.shape[0])
    lines = framed[low] * (1 - share)[:, None] + framed[low + 1] * share[:, None]
    columns, low, share = _cells(x1, x2, width, mask.shape[1])
    # Gathered, for products with matrices of weights take eight times as long.
    values = np.take(lines, low, axis=1) * (1 - share) + np.take(lines, low + 1, axis=1) * share
    return rows, columns, values >= 0.5


def _cells(
    start: float, stop: float, length: int, side: int
) -> tuple[slice, np.ndarray, np.ndarray]:
    """The n pixels of a box along an axis: the framed cell before each, and the next one's share.

    A pixel's value is that at its centre, and a cell's lies at the centre of the cell.
    """
    first = min(max(math.floor(start), 0), length)
    last = max(min(math.ceil(stop), length), first)
    centres = np.arange(first, last) + 0.5
    cells = (centres - start) / max(stop - start, 1e-9) * side - 0.5
    low = np.floor(cells)
    return slice(first, last), np.clip(low, -2, side).astype(np.intp) + 2, cells - low
