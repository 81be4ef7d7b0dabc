import time
from typing import Any

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from tpudet.detection.ops.numpy_masks import decode_rle
from tpudet.detection.preparation.sources.masks import mask_png, run_lengths_box

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


@pytest.mark.parametrize("polygon", [[0, 0, 10**400, 0, 5, 5], [0, 0, 4000, 3] * 10_000])
def test_a_polygon_too_long_to_draw_is_no_mask(polygon: list[float]) -> None:
    """Drawn, they would take gigabytes."""
    assert mask_png([polygon], height=4000, width=4000) is None


def test_of_polygons_only_what_is_near_the_image_is_drawn() -> None:
    """A thousand triangles of a million pixels in 141 KB took minutes."""
    left = drawn([[-1e6, 10, 20, 10, 20, 30, -1e6, 30]])
    assert left is not None
    assert left[10:30, :20].all()
    assert left.sum() == 20 * 20
    around = drawn([[-1e6, -1e9, 1e6, -1e9, 1e6, 1e9, -1e6, 1e9]])
    assert around is not None
    assert around.all()
    above = drawn([[0, 0, 1e9, 0, 1e9, 1e9]])
    assert above is not None
    pixels = np.triu(np.ones((HEIGHT, WIDTH), np.uint8))
    assert np.abs(above - pixels.astype(int)).sum() <= HEIGHT  # on the diagonal, half inside
    assert drawn([[200, 10, 1e6, 10, 1e6, 30]]) is None
    start = time.perf_counter()
    for _ in range(500):
        assert drawn([[0, 0, 1_048_000, 0, 0, 60]]) is not None
    assert time.perf_counter() - start < 10  # 70 seconds, drawn as they are


def test_polygons_near_the_image_are_drawn_as_by_pycocotools() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        reach = np.array([WIDTH, HEIGHT])
        polygons: Any = [
            random.uniform(-reach, 2 * reach, (n, 2)).ravel().tolist() for n in (3, 9, 20)
        ]
        joined = coco_mask.merge(coco_mask.frPyObjects(polygons, HEIGHT, WIDTH))
        np.testing.assert_array_equal(drawn(polygons), decode_rle(joined))


def test_many_polygons_beside_a_long_one() -> None:
    """Joined one by one, each costs as much as the long one: a minute and more."""
    xs = np.arange(2000) / 2
    zigzag = np.stack([xs, np.where(np.arange(2000) % 2, 999, 1)], axis=1).ravel().tolist()
    alone = mask_png([zigzag], height=1000, width=1000)
    start = time.perf_counter()
    found = mask_png(
        [zigzag, *([0, 0, 0, 0, 0, 0] for _ in range(20_000))], height=1000, width=1000
    )
    assert time.perf_counter() - start < 10
    assert found == alone


@pytest.mark.parametrize("size", [[10**6, 10**6], [-5, -5], [0, 0]])
def test_run_lengths_of_no_such_size_are_none(size: list[int]) -> None:
    counts = [0, size[0] * size[1]]
    assert run_lengths_box({"size": size, "counts": counts}, height=None, width=None) is None
    assert mask_png({"size": size, "counts": counts}, height=size[0], width=size[1]) is None
