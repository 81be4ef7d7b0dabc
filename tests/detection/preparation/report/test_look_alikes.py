"""Images that look alike are found whatever their size and compression, and no others."""

import cv2
import numpy as np
import pytest

from tpudet.detection.preparation.report.look_alikes import _shrink as shrink
from tpudet.detection.preparation.report.look_alikes import find_look_alikes, first_pairs
from tpudet.detection.preparation.report.set_statistics import SplitColumns


def scene(seed: int, height: int = 300, width: int = 400) -> np.ndarray:
    """[h, w, 3] uint8: blotches with some grain."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(30, 220, (7, 9, 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return (smooth + rng.normal(0, 5, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(image: np.ndarray, quality: int = 90) -> bytes:
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


def columns(names: list[str], contents: list[int]) -> SplitColumns:
    """Of images alone."""
    nothing = np.zeros(0)
    return SplitColumns(
        names=np.array(names, object),
        contents=np.array(contents),
        sizes=nothing,
        shards=nothing,
        offsets=nothing,
        lengths=nothing,
        box_images=nothing,
        class_ids=nothing,
        boxes_normalized=nothing,
        is_crowd=nothing,
        areas=nothing,
    )


COPIES = {
    "half the size": lambda image: jpeg(cv2.resize(image, None, fx=0.5, fy=0.5)),
    "strongly compressed": lambda image: jpeg(image, 20),
    "a PNG": lambda image: cv2.imencode(".png", image)[1].tobytes(),
    "brighter": lambda image: jpeg(cv2.convertScaleAbs(image, alpha=0.8, beta=40)),
    "a thumbnail": lambda image: jpeg(cv2.resize(image, (40, 30), interpolation=cv2.INTER_AREA)),
    "cropped by 1 %": lambda image: jpeg(image[3:, 4:]),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_looks_like_its_original_and_other_scenes_do_not(copy: str) -> None:
    train = np.stack([shrink(jpeg(scene(seed))) for seed in range(40)])
    val = np.stack([shrink(COPIES[copy](scene(17))), shrink(jpeg(scene(99)))])
    names = [f"t{seed}" for seed in range(40)]
    (found,) = find_look_alikes(
        [columns(names, list(range(40))), columns(["v0", "v1"], [98, 99])], [train, val]
    )
    assert (found.first_split, found.second_split) == (0, 1)
    assert (found.first_rows.tolist(), found.second_rows.tolist()) == ([17], [0])


def test_images_of_one_file_or_name_and_flat_ones_are_not_alike() -> None:
    flat = np.full((60, 80, 3), 90, np.uint8)
    a, b, c = (shrink(jpeg(image)) for image in (scene(1), scene(1)[1:], flat))
    assert not c.any()
    assert not shrink(b"no image").any()
    train, val = np.stack([a, c, b]), np.stack([a, c, b])
    found = find_look_alikes(
        [columns(["a", "flat", "b"], [1, 2, 3]), columns(["a", "flat 2", "x"], [7, 4, 3])],
        [train, val],
    )
    # b like a in each split, the first of val like b of train, and x of val like a of train.
    assert [(one.first_split, one.second_split, len(one.second_rows)) for one in found] == [
        *((0, 0, 1), (0, 1, 2), (1, 1, 1))
    ]
    assert [pair[:2] for pair in first_pairs(found)][2:] == [((0, 0), (0, 2)), ((1, 0), (1, 2))]
