"""Detects submissions with masks by their first line, without importing the mask reader."""

from collections.abc import Sequence

from tpudet.detection.submission.errors import SubmissionError
from tpudet.trainkit.files.storage import open_file

HEADER = "ImageID,ImageWidth,ImageHeight,PredictionString"
FIELDS = tuple(HEADER.lower().split(","))


def header_fields(line: bytes) -> tuple[str, ...]:
    """Returns the names of the columns that a first line gives, in small letters."""
    text = line.decode("utf-8-sig", "replace")
    return tuple(field.strip(' \t\r\n"').lower() for field in text.split(","))


def is_mask_submission(path: str) -> bool:
    """Returns whether the first line of a file is the header of a submission of masks.

    Raises:
        OSError: it cannot be opened.
    """
    with open_file(path, "rb") as file:
        return header_fields(file.readline(1 << 12)) == FIELDS


def have_masks(sources: Sequence[str]) -> bool:
    """Returns whether submissions are of masks.

    Raises:
        SubmissionError: some are, and others are of boxes.
    """
    kinds = [is_mask_submission(path) for path in sources]
    if any(kinds) and not all(kinds):
        named = {kind: sources[kinds.index(kind)] for kind in (True, False)}
        raise SubmissionError(f"{named[True]} is a submission of masks, {named[False]} is not")
    return any(kinds)
