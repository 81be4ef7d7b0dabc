"""Reads a submission as columns of the predictions that count in the Open Images Challenge."""

from typing import NamedTuple

import numpy as np

from tpudet.detection.evaluation.open_images.truth import LabelledTruth
from tpudet.detection.submission.errors import BadRows, BadRowsError, SubmissionError
from tpudet.detection.submission.files import bad_rows, in_file_order, open_submission, scan
from tpudet.detection.submission.fusion.blocks import Block
from tpudet.detection.submission.unknown_labels import UnknownLabels
from tpudet.detection.submission.writer import run_blocks
from tpudet.detection.types import DetectionTable


class ReadCounts(NamedTuple):
    """The counts of a submission, and of its predictions that do not count."""

    images: int
    images_elsewhere: int  # that are not in the ground truth
    images_missing: int  # of the ground truth, without a row: their objects are missed
    predictions: int
    elsewhere: int  # on images that are not in the ground truth
    unverified: int  # of classes that are not verified on their image
    unknown: str  # labels that are not classes, in words; empty if there are none
    bad: BadRows  # left out

    def describe(self) -> str:
        """A line per count that needs attention."""
        lines = [
            (self.images_elsewhere, "images are not in the ground truth and ignored, "
             f"with {self.elsewhere} predictions"),
            (self.images_missing, "images of the ground truth have no row: their objects are "
             "missed"),
            (self.unverified, "predictions ignored: their class is not verified on their image"),
        ]  # fmt: skip
        text = "".join(f"\n  {count} {what}" for count, what in lines if count)
        text += f"\n  {self.unknown}" if self.unknown else ""
        return text + self.bad.describe()


def read_box_predictions(
    path: str, labelled: LabelledTruth, *, skip_bad: bool = False, threads: int = 1
) -> tuple[DetectionTable, ReadCounts]:
    """Reads the predictions whose class is verified on their image, in the order of the file.

    Args:
        path: `ImageId,PredictionString`, a prediction being `MID score x1 y1 x2 y2`.
        labelled: the ground truth.
        skip_bad: whether bad rows are left out and counted.
        threads: at least 1; the result does not depend on it.

    Raises:
        SubmissionError: it is not a submission, or none of its images is in the ground truth.
        BadRowsError: there are bad rows and `skip_bad` is False.
    """
    labels = [entry.identifier.encode() for entry in labelled.classes]
    unknown = UnknownLabels()
    with open_submission(path) as source:
        images = image_rows(path, source.image_ids, labelled)
        bad = source.bad
        columns, counts = [], np.zeros(3, np.int64)
        blocks = run_blocks(
            in_file_order(source), lambda block: _read(block, labels, labelled, unknown), threads
        )
        for found, block_counts, block_bad in blocks:
            columns.append(found)
            counts += block_counts
            bad = bad.plus(block_bad)
        num_rows = len(source.rows)
    if bad.total and not skip_bad:
        raise BadRowsError(bad)
    empty = (np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int32))
    indices, boxes, scores, classes = (
        np.concatenate(parts) for parts in zip(empty, *columns, strict=True)
    )
    num_known = int((images >= 0).sum())
    return DetectionTable(indices, boxes, scores, classes), ReadCounts(
        images=num_rows,
        images_elsewhere=num_rows - num_known,
        images_missing=len(labelled.image_ids) - num_known,
        predictions=int(counts[0]),
        elsewhere=int(counts[1]),
        unverified=int(counts[2]),
        unknown=unknown.describe("predictions ignored, of labels that are not classes"),
        bad=bad,
    )


def image_rows(path: str, image_ids: np.ndarray, labelled: LabelledTruth) -> np.ndarray:
    """[n] int64: the row of each image id (bytes) in the ground truth, -1 if it is not there.

    Raises:
        SubmissionError: the ground truth has none of the ids.
    """
    known = labelled.image_ids
    rows = _rows_of(known, image_ids)
    if len(rows) and (rows < 0).all():
        raise SubmissionError(
            f"none of the {len(rows)} images of {path} is in the ground truth: its first is "
            f"{image_ids[0].decode(errors='replace')!r}, that of the ground truth "
            f"{known[0].decode(errors='replace')!r}"
        )
    return rows


def _rows_of(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """[n] int64: the row of each id among the known ones, which are sorted; -1 for no row."""
    rows = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    rows[known[rows] != ids] = -1
    return rows


def _read(
    block: Block, labels: list[bytes], labelled: LabelledTruth, unknown: UnknownLabels
) -> tuple[tuple[np.ndarray, ...], np.ndarray, BadRows]:
    rows, faults = scan(block, labels)
    unknown.add(block, rows)
    source = block.sources[0]
    ids = [
        source.data[start:stop].tobytes()
        for start, stop in zip(block.id_starts.tolist(), block.id_stops.tolist(), strict=True)
    ]
    images = _rows_of(labelled.image_ids, np.array(ids))[rows.images()]
    is_elsewhere = images < 0
    is_class = ~is_elsewhere & (rows.label_numbers >= 0)
    is_verified = is_class & labelled.truth.verified[images, rows.label_numbers]
    counts = (len(images), int(is_elsewhere.sum()), int(is_class.sum() - is_verified.sum()))
    columns = (
        images[is_verified],
        rows.boxes[is_verified][:, [1, 0, 3, 2]],
        rows.scores[is_verified],
        rows.label_numbers[is_verified] + 1,
    )
    return columns, np.array(counts), bad_rows(block, faults)
