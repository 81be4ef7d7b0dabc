"""Decoding with OpenCV: nothing is decoded before the size in its header was checked."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

import tpudet
from tpudet.detection.evaluation.mask_jobs import MaskFileError, PngJob, png_job
from tpudet.detection.ops.numpy_masks import decode_rle
from tpudet.detection.preparation.sources.mask_files import read_mask_file
from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.opencv_decode import decode_fitting_mask, decode_mask_image

OPENCV_READERS = re.compile(r"\bim(?:read|decode)\w*\(|\bVideoCapture\(")
MASK = np.array([[0, 1, 255], [0, 0, 7]], np.uint8)


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def test_opencv_reads_images_and_videos_in_one_place_each() -> None:
    (package,) = tpudet.__path__
    found = {
        str(path.relative_to(package))
        for path in Path(package).rglob("*.py")
        if OPENCV_READERS.search(path.read_text())
    }
    assert found == {"trainkit/images/opencv_decode.py", "trainkit/images/video.py"}


@pytest.mark.parametrize(
    "pixels",
    [
        MASK,
        MASK.astype(np.uint16),
        # 1 to 4 of blue, or 1 of red, is 0 of gray.
        np.stack([np.minimum(MASK, 4), 0 * MASK, 0 * MASK], axis=-1),
        np.stack([0 * MASK, 0 * MASK, MASK > 0], axis=-1).astype(np.uint16),
        np.stack([0 * MASK, np.minimum(MASK, 1), 0 * MASK, 0 * MASK + 255], axis=-1),
    ],
)
def test_any_value_above_zero_is_inside_a_mask(pixels: np.ndarray) -> None:
    assert decode_mask_image(png(pixels)).tolist() == [[False, True, True], [False, False, True]]


def test_masks_of_too_many_pixels_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = png(MASK)
    path = tmp_path / "mask.png"
    path.write_bytes(encoded)

    def read() -> list:
        (rle,) = png_job(PngJob(0, [encoded]), lambda _: None)[1]
        return [decode_rle(rle), read_mask_file(str(path)), decode_fitting_mask(encoded, (2, 3))]

    for mask in read():
        np.testing.assert_array_equal(mask, MASK > 0)
    assert decode_fitting_mask(encoded, (3, 2)) is None
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 5)
    with pytest.raises(MaskFileError, match="3 x 2 pixels are too many"):
        read()
    assert read_mask_file(str(path)) is None
    assert decode_fitting_mask(encoded, (2, 3)) is None
    with pytest.raises(ImageError, match="3 x 2 pixels are too many"):
        decode_mask_image(encoded)


@pytest.mark.parametrize("encoded", [b"", b"text", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"])
def test_what_states_no_size_is_an_image_error(encoded: bytes) -> None:
    with pytest.raises(ImageError):
        decode_mask_image(encoded)
