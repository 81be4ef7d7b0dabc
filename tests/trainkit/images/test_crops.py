"""Parts of images: their places by hand, JPEG against a plain crop, random parts in range."""

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.images.crops import Part, center_part, decode_part, random_part


def ramp(height: int, width: int) -> np.ndarray:
    """[h, w, 3]: red rises to the right, green downwards."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    image = np.stack([255 * x / width, 255 * y / height, np.full_like(x, 90)], -1)
    return image.round().astype(np.uint8)


def encode(image: np.ndarray, ending: str) -> bytes:
    return cv2.imencode(ending, image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 99])[1].tobytes()


@pytest.mark.parametrize(
    ("size", "share", "aspect", "begin", "part"),
    [
        ((100, 200), 0.875, 1.0, (6, 56), (88, 88)),  # 224 of 256, as in tensorflow/tpu
        ((100, 100), 1.0, 2.0, (25, 0), (50, 100)),
        ((1, 50), 0.5, 1.0, (0, 24), (1, 1)),  # rounds to nothing: one pixel
    ],
)
def test_the_central_part(size, share, aspect, begin, part) -> None:
    found = center_part(tf.constant(size), share, aspect=aspect)
    assert tuple(found.begin.numpy()) == begin
    assert tuple(found.size.numpy()) == part


@pytest.mark.parametrize(("ending", "tolerance"), [(".jpg", 4), (".png", 2)])
@pytest.mark.parametrize("side", [16, 64, 200])
def test_a_part_is_decoded_where_it_is(ending: str, tolerance: int, side: int) -> None:
    """The ramp tells the place of every pixel, whatever the reduction."""
    image = ramp(240, 320)
    part = Part(tf.constant([40, 80]), tf.constant([160, 128]))
    found = decode_part(encode(image, ending), lambda size: part, side, side).numpy()
    assert found.shape == (side, side, 3)
    centers = (np.arange(side) + 0.5) / side
    wanted_red = 255 * (80 + 128 * centers - 0.5) / 320
    wanted_green = 255 * (40 + 160 * centers - 0.5) / 240
    inner = slice(1, -1)  # at the border there is nothing to interpolate with
    assert np.abs(found[side // 2, inner, 0] - wanted_red[inner]).max() <= tolerance
    assert np.abs(found[inner, side // 2, 1] - wanted_green[inner]).max() <= tolerance


def test_random_parts_have_the_area_and_shape_that_they_may_have() -> None:
    size, whole = tf.constant([100, 150]), Part(tf.zeros([2], tf.int32), tf.constant([100, 150]))
    parts = [
        random_part(
            size,
            tf.constant([7, index], tf.int64),
            area_range=(0.2, 0.6),
            aspect_range=(0.75, 4 / 3),
            otherwise=whole,
        )
        for index in range(100)
    ]
    sizes = np.array([part.size.numpy() for part in parts])
    begins = np.array([part.begin.numpy() for part in parts])
    shares = sizes.prod(axis=1) / 15000
    aspects = sizes[:, 1] / sizes[:, 0]
    assert (begins >= 0).all()
    assert (begins + sizes <= [100, 150]).all()
    assert shares.min() > 0.18
    assert shares.max() < 0.62
    assert shares.std() > 0.08
    assert aspects.min() > 0.72
    assert aspects.max() < 1.38


def test_what_finds_no_part_takes_the_other_one() -> None:
    """No part of 90 % of a strip is nearly square."""
    strip, center = tf.constant([10, 1000]), Part(tf.constant([0, 495]), tf.constant([10, 10]))
    found = random_part(
        strip,
        tf.constant([1, 2], tf.int64),
        area_range=(0.9, 1.0),
        aspect_range=(0.9, 1.1),
        otherwise=center,
    )
    assert tuple(found.begin.numpy()) == (0, 495)
    assert tuple(found.size.numpy()) == (10, 10)
