"""Detects submissions with masks by their first line, without importing the mask reader."""

from collections.abc import Sequence

from tpudet.detection.submission.errors import SubmissionError
from tpudet.detection.submission.open_images_csv import header_fields
from tpudet.trainkit.files.storage import open_file

HEADER = "ImageID,ImageWidth,ImageHeight,PredictionString"


def is_mask_header(line: str) -> bool:
    """Whether a line is the header: `ImageID` or `ImageId`, any case, in quotes or not."""
    return header_fields(line) == header_fields(HEADER)


def is_mask_submission(path: str) -> bool:
    """Returns whether the first line of a file is the header of a submission of masks.

    Raises:
        OSError: it cannot be opened.
    """
    with open_file(path, "rb") as file:
        return is_mask_header(file.readline(1 << 12).decode("utf-8", "replace"))


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
