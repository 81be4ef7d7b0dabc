import numpy as np
import tensorflow as tf

from tpudet.trainkit.backbones.pixels import fill_outside, normalize_pixels

IMAGENET = {"pixel_mean": (0.485, 0.456, 0.406), "pixel_std": (0.229, 0.224, 0.225)}


def test_by_hand():
    images = np.array([[0, 255, 51]], np.uint8)
    expected = [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    found = normalize_pixels(images, **IMAGENET, dtype="float32")
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_half_precision_is_rounded_once():
    images = np.arange(256, dtype=np.uint8).repeat(3).reshape(256, 3)
    found = normalize_pixels(images, **IMAGENET, dtype="bfloat16")
    whole = normalize_pixels(images, **IMAGENET, dtype="float32")
    np.testing.assert_array_equal(
        tf.cast(found, "float32"), tf.cast(tf.cast(whole, "bfloat16"), "float32")
    )


def test_the_mean_colour_outside_of_a_region_becomes_0():
    images = np.full((2, 4, 5, 3), 200, np.uint8)
    regions = np.array([[0, 0, 3, 2], [1, 0, 4, 5]], np.float32)
    filled = fill_outside(images, regions, colour=IMAGENET["pixel_mean"])
    found = np.asarray(normalize_pixels(filled, **IMAGENET, dtype="float32"))
    inside = np.zeros((2, 4, 5), bool)
    inside[0, :3, :2] = inside[1, 1:] = True
    np.testing.assert_allclose(found[~inside], 0.0, atol=1e-6)
    whole = np.asarray(normalize_pixels(images, **IMAGENET, dtype="float32"))
    np.testing.assert_array_equal(found[inside], whole[inside])
