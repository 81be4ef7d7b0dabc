import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.preparation.sources.masks import mask_png

HEIGHT, WIDTH = 48, 64


def drawn(segmentation: object) -> np.ndarray | None:
    found = mask_png(segmentation, height=HEIGHT, width=WIDTH)
    if found is None:
        return None
    mask = cv2.imdecode(np.frombuffer(found.encoded, np.uint8), cv2.IMREAD_UNCHANGED)
    assert mask is not None
    assert found.area == mask.sum()
    return mask


def test_polygons_are_joined() -> None:
    squares = [[4, 5, 24, 5, 24, 35, 4, 35], [30, 5, 40, 5, 40, 15, 30, 15]]
    mask = drawn(squares)
    assert mask is not None
    assert mask[5:35, 4:24].all()
    assert mask.sum() == 20 * 30 + 10 * 10


def test_run_lengths_are_drawn_compressed_and_not() -> None:
    random = np.random.default_rng(0)
    for density in (0.02, 0.5, 0.98):
        expected = (random.random((HEIGHT, WIDTH)) < density).astype(np.uint8)
        column_major = expected.ravel(order="F")
        changes = np.flatnonzero(np.diff(np.concatenate([[0], column_major])))
        counts = np.diff(np.concatenate([[0], changes, [expected.size]])).tolist()
        compressed = coco_mask.encode(np.asfortranarray(expected))["counts"].decode()
        for form in (counts, compressed):
            mask = drawn({"size": [HEIGHT, WIDTH], "counts": form})
            np.testing.assert_array_equal(mask, expected)


@pytest.mark.parametrize(
    "segmentation",
    [
        None,
        [],
        [[4, 5]],
        [[1, 2, 3, 4, 5, float("nan")]],
        [[1, 2, 3, 4, 5, 6, 7]],
        [{"x": 1}],
        {"size": [WIDTH, HEIGHT], "counts": [0, WIDTH * HEIGHT]},
        {"size": [HEIGHT, WIDTH], "counts": [1]},
        {"size": [HEIGHT, WIDTH], "counts": [0, WIDTH * HEIGHT + 1]},
        {"size": [HEIGHT, WIDTH], "counts": [WIDTH * HEIGHT]},
        {"size": [HEIGHT, WIDTH], "counts": "zz"},
        {"size": [HEIGHT, WIDTH], "counts": ""},
        {"size": [HEIGHT, WIDTH], "counts": "P"},
        {"size": [HEIGHT, WIDTH]},
        "text",
    ],
)
def test_what_covers_no_pixel_or_is_malformed_is_no_mask(segmentation: object) -> None:
    assert drawn(segmentation) is None


@pytest.mark.parametrize(
    "polygon", [[0, 0, 1e9, 0, 1e9, 1e9], [0, 0, 10**400, 0, 5, 5], [0, 0, 4000, 3] * 10_000]
)
def test_a_polygon_too_long_to_draw_is_no_mask(polygon: list[float]) -> None:
    """Drawn, they would take gigabytes."""
    assert mask_png([polygon], height=4000, width=4000) is None
