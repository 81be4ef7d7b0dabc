"""Pixel operations against Pillow's, bit for bit."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tpudet.trainkit.images import pixel_operations


def noise(height: int, width: int, low: int = 0, high: int = 256) -> np.ndarray:
    random = np.random.default_rng(height * 1000 + width)
    return random.integers(low, high, (height, width, 3), np.uint8)


def slope(height: int, width: int) -> np.ndarray:
    """Each channel another range, so that each is stretched differently."""
    ramp = np.linspace(0, 1, height * width).reshape(height, width, 1)
    return (ramp * [90, 200, 30] + [10, 40, 128]).astype(np.uint8)


PICTURES = {
    "noise": noise(97, 131),
    "dark": noise(60, 40, 3, 50),
    "slope": slope(64, 80),
    "two_values": noise(33, 21, 7, 9),
    "flat": np.full((20, 30, 3), 77, np.uint8),
    "tiny": noise(2, 7),
    "one_pixel": noise(1, 1),
}


def enhanced(kind: type, factor: float):
    return lambda image: kind(image).enhance(factor)


AGAINST_PILLOW = {
    "equalize": (pixel_operations.equalize, ImageOps.equalize),
    "auto_contrast": (pixel_operations.auto_contrast, ImageOps.autocontrast),
}
for bits in (1, 3, 8):
    AGAINST_PILLOW[f"posterize_{bits}"] = (
        lambda image, bits=bits: pixel_operations.posterize(image, bits),
        lambda image, bits=bits: ImageOps.posterize(image, bits),
    )
for threshold in (0, 100, 255, 256):
    AGAINST_PILLOW[f"solarize_{threshold}"] = (
        lambda image, threshold=threshold: pixel_operations.solarize(image, threshold),
        lambda image, threshold=threshold: ImageOps.solarize(image, threshold),
    )
for name in ("brightness", "contrast", "color", "sharpness"):
    for factor in (0.0, 0.1, 0.64, 1.0, 1.37, 1.9):
        AGAINST_PILLOW[f"{name}_{factor}"] = (
            lambda image, name=name, factor=factor: getattr(pixel_operations, f"change_{name}")(
                image, factor
            ),
            enhanced(getattr(ImageEnhance, name.capitalize()), factor),
        )


@pytest.mark.parametrize("operation", AGAINST_PILLOW)
def test_equals_pillow(operation):
    ours, pillows = AGAINST_PILLOW[operation]
    traced = tf.function(ours, input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
    for name, image in PICTURES.items():
        expected = np.asarray(pillows(Image.fromarray(image)))
        for run in (ours, traced):
            result = run(tf.constant(image))
            assert result.dtype == tf.uint8
            np.testing.assert_array_equal(result, expected, err_msg=name)


@pytest.mark.parametrize(
    "operation", ["equalize", "auto_contrast", "contrast_1.9", "sharpness_1.9"]
)
def test_equals_pillow_on_a_photograph(operation, data_dir):
    ours, pillows = AGAINST_PILLOW[operation]
    image = Image.open(sorted(data_dir.glob("bccd/BCCD/JPEGImages/*.jpg"))[0]).convert("RGB")
    np.testing.assert_array_equal(ours(tf.constant(np.asarray(image))), np.asarray(pillows(image)))


def test_contrast_of_a_large_image_keeps_its_mean():
    # 300 x 300 is over 65,280 pixels, where the count of pixels / 256 in place of the mean is 255.
    image = noise(300, 300, 50, 61)
    flat = pixel_operations.change_contrast(tf.constant(image), 0.0).numpy()
    assert np.unique(flat).tolist() == [55]


def test_solarize_add():
    image = np.array([[[0, 17, 127], [128, 200, 255]]], np.uint8)
    added = pixel_operations.solarize_add(tf.constant(image), 110)
    assert added.numpy().tolist() == [[[110, 127, 237], [128, 200, 255]]]
    added = pixel_operations.solarize_add(tf.constant(image), 200)
    assert added.numpy().tolist() == [[[200, 217, 255], [128, 200, 255]]]
    np.testing.assert_array_equal(pixel_operations.solarize_add(tf.constant(image), 0), image)


def test_hue_turns_as_colorsys_does():
    image = noise(9, 11)
    turned = pixel_operations.turn_hue(tf.constant(image), 0.2).numpy()
    for old, new in zip(image.reshape(-1, 3), turned.reshape(-1, 3), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(old / 255.0))
        expected = np.array(colorsys.hsv_to_rgb((hue + 0.2) % 1, saturation, value)) * 255.0
        assert np.abs(new - expected).max() <= 0.51
    np.testing.assert_array_equal(pixel_operations.turn_hue(tf.constant(image), 0.0), image)


def test_only_the_crossing_is_filled():
    image = noise(3, 4)
    rows, columns = [False, True, True], [True, False, False, True]
    filled = pixel_operations.fill_crossing(
        tf.constant(image), tf.constant(rows), tf.constant(columns)
    ).numpy()
    marked = np.outer(rows, columns)
    assert (filled[marked] == 128).all()
    np.testing.assert_array_equal(filled[~marked], image[~marked])
