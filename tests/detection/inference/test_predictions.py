"""Predictions that no reader of submissions would take are refused where they are read."""

import numpy as np
import pytest

from tpudet.detection.inference.predictions import (
    ImagePredictions,
    PredictionsError,
    check_blocks,
)
from tpudet.detection.submission.mask_rows import MaskRow, format_row, parse_row
from tpudet.detection.submission.mask_text import MaskError

# The largest side and the largest image are 65,535 and 2^27 pixels.
SIZES: dict[tuple, bool] = {
    (4, 4): True,
    (1, 65_535): True,
    (2**13, 2**14): True,
    (1, 65_536): False,
    (2**13 + 1, 2**14): False,
    (2**20, 2**20): False,
    (0, 4): False,
    (-4, -4): False,
    (2.5, 6.4): False,
}


def outside(pixels: float) -> str:
    """COCO's compressed counts of an empty mask: one run, five bits a letter, lowest first."""
    rest, letters = int(pixels), ""
    while rest > 15:
        letters += chr(48 + (rest & 31 | 32))
        rest >>= 5
    return letters + chr(48 + rest)


@pytest.mark.parametrize("size", SIZES)
def test_masks_have_the_sizes_that_submissions_can_have(size: tuple) -> None:
    mask = {"size": list(size), "counts": outside(size[0] * size[1])}
    one = np.ones(1, np.float32)
    image = ImagePredictions("a", one.astype(np.int32), one, np.ones((1, 4), np.float32), [mask])
    line = format_row(MaskRow("a", size[1], size[0], ())).encode()
    if SIZES[size]:
        assert list(check_blocks([[image]], 1)) == [[image]]
        assert parse_row(line)[1:3] == size[::-1]
        return
    with pytest.raises(PredictionsError, match=r"'a' has a mask of size \[.*\]; height and width"):
        list(check_blocks([[image]], 1))
    with pytest.raises(MaskError):
        parse_row(line)


@pytest.mark.parametrize("size", [[4], [4, 4, 1], 4, None, [True, True], "44"])
def test_what_is_no_size_is_refused(size: object) -> None:
    one = np.ones(1, np.float32)
    masks = [{"size": size, "counts": outside(1)}]
    image = ImagePredictions("a", one.astype(np.int32), one, np.ones((1, 4), np.float32), masks)
    with pytest.raises(PredictionsError, match="has a mask of size"):
        list(check_blocks([[image]], 1))
