"""GridMask and colour jitter."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance

from tpudet.detection.data.augmentations.pixels import apply_grid_mask
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.images.pixel_operations import jitter_colors

BOXES = tf.constant([[1.0, 2.0, 30.0, 40.0]])
NO_COLOR = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def annotated_image(image: tf.Tensor) -> AnnotatedImage:
    return AnnotatedImage(image, BOXES, tf.constant([False]), masks=None)


def seed_of(index) -> tf.Tensor:
    return tf.stack([tf.constant(4, tf.int64), tf.cast(index, tf.int64)])


def image_of(height: int, width: int, high: int = 256) -> tf.Tensor:
    random = np.random.default_rng(height)
    return tf.constant(random.integers(0, high, (height, width, 3), np.uint8))


def stripes(marked: np.ndarray) -> tuple[set[int], set[int]]:
    """Lengths of the whole runs of True, and distances from one's beginning to the next one's."""
    steps = np.diff(marked.astype(int))
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    lengths = {int(ends[ends > begin][0] - begin) for begin in begins if (ends > begin).any()}
    return lengths, set(np.diff(begins).tolist())


@pytest.mark.parametrize(
    # What is kept is the authors' int(period * r + 0.5), at least 1 and below the period.
    ("deleted_ratio", "sides"),
    [
        (0.5, {2: 1, 3: 1, 11: 5, 100: 50}),
        (0.25, {2: 1, 3: 1, 11: 3, 100: 25}),
        (0.75, {2: 1, 3: 2, 11: 8, 100: 75}),
    ],
)
def test_grid_mask_deletes_equal_squares(deleted_ratio, sides):
    periods, shares = [], []
    for height, width, count in ((320, 640, 60), (16, 640, 40)):
        image = image_of(height, width, high=120)
        for index in range(count):
            annotated = apply_grid_mask(
                annotated_image(image), seed_of(index), probability=1.0, deleted_ratio=deleted_ratio
            )
            deleted = np.all(annotated.image == 128, axis=-1)
            assert np.array_equal(annotated.image.numpy()[~deleted], image.numpy()[~deleted])
            rows, columns = deleted.any(1), deleted.any(0)
            assert np.array_equal(deleted, np.outer(rows, columns))
            assert annotated.boxes is BOXES
            shares.append(deleted.mean())
            (side,), (period,) = stripes(columns)
            assert stripes(rows)[0] <= {side}
            assert stripes(rows)[1] <= {period}
            assert side == sides.get(period, side)
            assert abs(side - deleted_ratio * period) <= 0.5
            periods.append((height, period))
    assert np.mean(shares) == pytest.approx(deleted_ratio**2, abs=0.06)
    # From 2 to below the shorter side, all of them equally likely.
    large = [period for height, period in periods if height == 320]
    assert 2 <= min(large) < 30
    assert 290 < max(large) < 320
    assert np.mean(large) == pytest.approx(160.5, abs=4 * 318 / 12**0.5 / 60**0.5)
    small = {period for height, period in periods if height == 16}
    assert {2, 3, 11, 15} <= small <= set(range(2, 16))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (3, 3)])
def test_grid_mask_on_tiny_images(size):
    image = image_of(*size, high=120)
    shares = []
    for index in range(20):
        annotated = apply_grid_mask(
            annotated_image(image), seed_of(index), probability=1.0, deleted_ratio=0.5
        )
        assert annotated.image.shape == image.shape
        shares.append(np.all(annotated.image == 128, axis=-1).mean())
    assert np.mean(shares) == pytest.approx(0.25, abs=0.25)


def test_grid_mask_probability():
    image = image_of(64, 64, high=120)
    run = lambda index: apply_grid_mask(  # noqa: E731
        annotated_image(image), seed_of(index), probability=0.4, deleted_ratio=0.5
    )[0]
    images = list(tf.data.Dataset.range(300).map(run))
    changed = np.mean([not np.array_equal(new, image) for new in images])
    assert changed == pytest.approx(0.4, abs=0.14)  # five standard deviations


def test_grid_mask_without_probability_changes_nothing():
    image = image_of(64, 64)
    for index in range(5):
        masked = apply_grid_mask(
            annotated_image(image), seed_of(index), probability=0.0, deleted_ratio=0.5
        )
        np.testing.assert_array_equal(masked.image, image)


@pytest.mark.parametrize(
    ("name", "place", "enhance"),
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_color_factors_are_uniform_and_applied_as_pillow(name, place, enhance):
    image = image_of(30, 40)
    factors = []
    for index in range(20):
        draw = tf.random.stateless_uniform([4], seed_of(index), -1.0, 1.0, alg="philox")[place]
        factors.append(float(1.0 + 0.4 * draw))
        changed = jitter_colors(image, seed_of(index), **{**NO_COLOR, name: 0.4})
        expected = enhance(Image.fromarray(image.numpy())).enhance(factors[-1])
        difference = np.abs(changed.numpy().astype(int) - np.asarray(expected))
        assert difference.max() <= 1  # the factor is a float32 here, a Python number there
        assert difference.mean() < 1e-3
    assert 0.6 <= min(factors) < 0.8
    assert 1.2 < max(factors) <= 1.4


def test_color_all_four_in_a_dataset():
    image = image_of(30, 40)
    options = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1}
    run = lambda index: jitter_colors(image, seed_of(index), **options)  # noqa: E731
    first, again = (list(tf.data.Dataset.range(20).map(run)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert (one.shape, one.dtype) == (image.shape, tf.uint8)
        np.testing.assert_array_equal(one, other)
    assert len({one.numpy().tobytes() for one in first}) == 20


def test_color_of_strength_zero_changes_nothing():
    image = image_of(30, 40)
    assert jitter_colors(image, seed_of(0), **NO_COLOR) is image
