"""The arrays that the kernel works on: blocks of images, scanned predictions, fusion settings."""

import mmap
from typing import NamedTuple

import numpy as np

from tpudet.detection.submission.errors import BadRows, SubmissionError


def require_whole(path: str, mapped: mmap.mmap) -> None:
    """As `SubmissionFile.require_whole`."""
    if mapped.size() < len(mapped):
        raise SubmissionError(
            f"{path} was cut from {len(mapped):,} to {mapped.size():,} bytes while it was read; "
            "run this again when it is whole"
        )


class SubmissionFile(NamedTuple):
    """An open submission: its bytes and the places of its R rows, in the order of the file."""

    path: str
    data: np.ndarray  # [size] uint8, mapped
    rows: np.ndarray  # [R, 5] int64: start and stop of the id, of the prediction string, line
    image_ids: np.ndarray  # [R] bytes
    bad: BadRows  # rows without a usable id, and repeated rows of an image
    map: mmap.mmap | None

    def require_whole(self) -> None:
        """Called before each block: reading mapped bytes that are gone ends the process.

        Raises:
            SubmissionError: the file was cut after it was opened.
        """
        if self.map is not None:
            require_whole(self.path, self.map)

    def release(self) -> None:
        """Gives the mapped pages back; they are read again when they are needed."""
        if self.map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)


class Block(NamedTuple):
    """Images and the places of their rows: a piece for each file that has a row of the image."""

    sources: tuple[SubmissionFile, ...]
    id_files: np.ndarray  # [images] int64, the source that the id is printed from
    id_starts: np.ndarray  # [images] int64
    id_stops: np.ndarray  # [images] int64
    piece_ends: np.ndarray  # [images + 1] int64; image i has pieces [i] to [i + 1] of these
    piece_files: np.ndarray  # [pieces] int64, in ascending order within an image
    piece_starts: np.ndarray  # [pieces] int64, of the prediction string
    piece_stops: np.ndarray  # [pieces] int64
    piece_lines: np.ndarray  # [pieces] int64

    def part(self, first: int, last: int) -> "Block":
        """The images `first:last`."""
        pieces = slice(self.piece_ends[first], self.piece_ends[last])
        return Block(
            self.sources,
            self.id_files[first:last],
            self.id_starts[first:last],
            self.id_stops[first:last],
            self.piece_ends[first : last + 1] - self.piece_ends[first],
            self.piece_files[pieces],
            self.piece_starts[pieces],
            self.piece_stops[pieces],
            self.piece_lines[pieces],
        )

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The bytes of each source, uint8."""
        return tuple(source.data for source in self.sources)

    def num_bytes(self) -> int:
        """The length of all prediction strings."""
        return int((self.piece_stops - self.piece_starts).sum())


class ScannedRows(NamedTuple):
    """The n predictions of a block of images, in the order of the images and of their text.

    Labels are not copied: where `label_numbers` is -1, a label is `label_lengths[i]` bytes from
    `label_starts[i]` in file `label_files[i]`; otherwise it is that one of the known labels which
    were given to the scan. Setting a number, then, changes the label.
    """

    image_ends: np.ndarray  # [images + 1] int64; image i has rows image_ends[i]:image_ends[i + 1]
    label_files: np.ndarray  # [n] int32
    label_starts: np.ndarray  # [n] int64
    label_lengths: np.ndarray  # [n] int32
    label_numbers: np.ndarray  # [n] int32
    scores: np.ndarray  # [n] float64 in 0..1
    boxes: np.ndarray  # [n, 4] float64 x1 y1 x2 y2

    def first_of_image(self) -> np.ndarray:
        """[n] bool: whether a prediction is the first of its image."""
        first = np.zeros(len(self.scores), bool)
        starts = self.image_ends[:-1]
        first[starts[starts < self.image_ends[1:]]] = True
        return first

    def images(self) -> np.ndarray:
        """[n] int64: of each prediction, the index of its image in the block."""
        return np.repeat(np.arange(len(self.image_ends) - 1), np.diff(self.image_ends))

    def take(self, chosen: np.ndarray) -> "ScannedRows":
        """Returns only the chosen predictions, or predictions in another order.

        Args:
            chosen: [n] bool, or indices [m] by which the predictions of an image stay together
                and the images in order; an index may occur more than once.
        """
        if chosen.dtype == bool:
            ends = np.concatenate([[0], np.cumsum(chosen, dtype=np.int64)])[self.image_ends]
        else:
            counts = np.bincount(self.images()[chosen], minlength=len(self.image_ends) - 1)
            ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return ScannedRows(ends, *(column[chosen] for column in self[1:]))


class SettingsTable(NamedTuple):
    """Fusion settings as columns: row 0 for all labels but the L named ones."""

    labels: list[bytes]
    methods: np.ndarray  # [1 + L] int32, places in METHODS
    ious: np.ndarray  # [1 + L] float64
    sigmas: np.ndarray  # [1 + L] float64
    thresholds: np.ndarray  # [1 + L] float64
