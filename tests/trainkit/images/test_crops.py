"""Crops of images: their places by hand, JPEG against a slice, random crops in range."""

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.images.crops import Crop, center_crop, decode_crop, random_crop


def ramp(height: int, width: int) -> np.ndarray:
    """[h, w, 3]: red rises to the right, green downwards."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    image = np.stack([255 * x / width, 255 * y / height, np.full_like(x, 90)], -1)
    return image.round().astype(np.uint8)


def encode(image: np.ndarray, ending: str) -> bytes:
    return cv2.imencode(ending, image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 99])[1].tobytes()


@pytest.mark.parametrize(
    ("size", "share", "aspect", "begin", "crop"),
    [
        ((100, 200), 0.875, 1.0, (6, 56), (88, 88)),  # 224 of 256, as in tensorflow/tpu
        ((100, 100), 1.0, 2.0, (25, 0), (50, 100)),
        ((1, 50), 0.5, 1.0, (0, 24), (1, 1)),  # rounds to nothing: one pixel
    ],
)
def test_the_central_crop(size, share, aspect, begin, crop) -> None:
    found = center_crop(tf.constant(size), share, aspect=aspect)
    assert tuple(found.begin.numpy()) == begin
    assert tuple(found.size.numpy()) == crop


@pytest.mark.parametrize(("ending", "tolerance"), [(".jpg", 4), (".png", 2)])
@pytest.mark.parametrize("side", [16, 64, 200])
def test_a_crop_is_decoded_where_it_is(ending: str, tolerance: int, side: int) -> None:
    """The ramp tells the place of every pixel, whatever the reduction."""
    image = ramp(240, 320)
    crop = Crop(tf.constant([40, 80]), tf.constant([160, 128]))
    found = decode_crop(encode(image, ending), lambda size: crop, side, side).numpy()
    assert found.shape == (side, side, 3)
    centers = (np.arange(side) + 0.5) / side
    wanted_red = 255 * (80 + 128 * centers - 0.5) / 320
    wanted_green = 255 * (40 + 160 * centers - 0.5) / 240
    inner = slice(1, -1)  # at the border there is nothing to interpolate with
    assert np.abs(found[side // 2, inner, 0] - wanted_red[inner]).max() <= tolerance
    assert np.abs(found[inner, side // 2, 1] - wanted_green[inner]).max() <= tolerance


def test_random_crops_have_the_area_and_shape_that_they_may_have() -> None:
    size, whole = tf.constant([100, 150]), Crop(tf.zeros([2], tf.int32), tf.constant([100, 150]))
    crops = [
        random_crop(
            size,
            tf.constant([7, index], tf.int64),
            area_range=(0.2, 0.6),
            aspect_range=(0.75, 4 / 3),
            otherwise=whole,
        )
        for index in range(100)
    ]
    sizes = np.array([crop.size.numpy() for crop in crops])
    begins = np.array([crop.begin.numpy() for crop in crops])
    shares = sizes.prod(axis=1) / 15000
    aspects = sizes[:, 1] / sizes[:, 0]
    assert (begins >= 0).all()
    assert (begins + sizes <= [100, 150]).all()
    assert shares.min() > 0.18
    assert shares.max() < 0.62
    assert shares.std() > 0.08
    assert aspects.min() > 0.72
    assert aspects.max() < 1.38


def test_what_finds_no_crop_takes_the_other_one() -> None:
    """No crop of 90 % of a strip is nearly square."""
    strip, center = tf.constant([10, 1000]), Crop(tf.constant([0, 495]), tf.constant([10, 10]))
    found = random_crop(
        strip,
        tf.constant([1, 2], tf.int64),
        area_range=(0.9, 1.0),
        aspect_range=(0.9, 1.1),
        otherwise=center,
    )
    assert tuple(found.begin.numpy()) == (0, 495)
    assert tuple(found.size.numpy()) == (10, 10)
