"""GridMask and colour jitter."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance

from detection.data.color import apply_color
from detection.data.grid_mask import PERIOD_PIXELS, apply_grid_mask

BOXES = tf.constant([[1.0, 2.0, 30.0, 40.0]])
NO_COLOR = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}


def seed_of(index) -> tf.Tensor:
    return tf.stack([tf.constant(4, tf.int64), tf.cast(index, tf.int64)])


def picture_of(height: int, width: int, high: int = 256) -> tf.Tensor:
    random = np.random.default_rng(height)
    return tf.constant(random.integers(0, high, (height, width, 3), np.uint8))


def runs(marked: np.ndarray) -> list[int]:
    """Lengths of the whole runs of True, those at the ends left out."""
    edges = np.flatnonzero(np.diff(marked.astype(int)))
    starts = [edge for edge in edges if not marked[edge]]
    return [int(min(edges[edges > start]) - start) for start in starts if (edges > start).any()]


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.7])
def test_grid_mask_deletes_equal_squares(ratio):
    picture = picture_of(320, 640, high=120)
    shares = []
    for index in range(25):
        masked, boxes, masks = apply_grid_mask(
            picture, BOXES, None, seed_of(index), probability=1.0, ratio=ratio
        )
        deleted = np.all(masked == 128, axis=-1)
        assert np.array_equal(masked.numpy()[~deleted], picture.numpy()[~deleted])
        rows, columns = deleted.any(1), deleted.any(0)
        assert np.array_equal(deleted, np.outer(rows, columns))
        sides = set(runs(rows) + runs(columns))
        assert len(sides) <= 1
        if sides:
            assert PERIOD_PIXELS[0] * ratio - 1 <= sides.pop() <= PERIOD_PIXELS[1] * ratio + 1
        shares.append(deleted.mean())
        assert boxes is BOXES
        assert masks is None
    assert np.mean(shares) == pytest.approx(ratio**2, abs=0.05)


def test_grid_mask_probability():
    picture = picture_of(64, 64, high=120)
    run = lambda index: apply_grid_mask(  # noqa: E731
        picture, BOXES, None, seed_of(index), probability=0.4, ratio=0.5
    )[0]
    pictures = list(tf.data.Dataset.range(300).map(run))
    changed = np.mean([not np.array_equal(new, picture) for new in pictures])
    assert changed == pytest.approx(0.4, abs=0.14)  # five standard deviations


def test_grid_mask_without_probability_changes_nothing():
    picture = picture_of(64, 64)
    for index in range(5):
        masked = apply_grid_mask(picture, BOXES, None, seed_of(index), probability=0.0, ratio=0.5)
        np.testing.assert_array_equal(masked.picture, picture)


@pytest.mark.parametrize(
    ("probability", "ratio"), [(-0.1, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.0)]
)
def test_grid_mask_arguments_out_of_range(probability, ratio):
    with pytest.raises(ValueError, match=f"got {probability} and {ratio}"):
        apply_grid_mask(
            picture_of(8, 8), BOXES, None, seed_of(0), probability=probability, ratio=ratio
        )


@pytest.mark.parametrize(
    ("name", "place", "enhance"),
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_color_factors_are_uniform_and_applied_as_pillow(name, place, enhance):
    picture = picture_of(30, 40)
    factors = []
    for index in range(20):
        draw = tf.random.stateless_uniform([4], seed_of(index), -1.0, 1.0, alg="philox")[place]
        factors.append(float(1.0 + 0.4 * draw))
        changed = apply_color(picture, BOXES, None, seed_of(index), **{**NO_COLOR, name: 0.4})
        expected = enhance(Image.fromarray(picture.numpy())).enhance(factors[-1])
        difference = np.abs(changed.picture.numpy().astype(int) - np.asarray(expected))
        assert difference.max() <= 1  # the factor is a float32 here, a Python number there
        assert difference.mean() < 1e-3
        assert changed.boxes is BOXES
    assert 0.6 <= min(factors) < 0.8
    assert 1.2 < max(factors) <= 1.4


def test_color_all_four_in_a_dataset():
    picture = picture_of(30, 40)
    options = {"brightness": 0.3, "contrast": 0.3, "saturation": 0.3, "hue": 0.1}
    run = lambda index: apply_color(picture, BOXES, None, seed_of(index), **options)[0]  # noqa: E731
    first, again = (list(tf.data.Dataset.range(20).map(run)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert (one.shape, one.dtype) == (picture.shape, tf.uint8)
        np.testing.assert_array_equal(one, other)
    assert len({one.numpy().tobytes() for one in first}) == 20


def test_color_of_strength_zero_changes_nothing():
    picture = picture_of(30, 40)
    assert apply_color(picture, BOXES, None, seed_of(0), **NO_COLOR).picture is picture


@pytest.mark.parametrize("wrong", [{"brightness": -0.1}, {"contrast": 1.5}, {"hue": 0.6}])
def test_color_arguments_out_of_range(wrong):
    with pytest.raises(ValueError, match="hue in 0..0.5, got"):
        apply_color(picture_of(8, 8), BOXES, None, seed_of(0), **{**NO_COLOR, **wrong})
