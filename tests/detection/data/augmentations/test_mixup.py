import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.augmentations.mixing import blend, mixup


def flat(level: int, height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def test_numbers_by_hand(make_sample):
    first = make_sample(flat(200, 2, 3), [[0, 0, 2, 2]], with_masks=True)
    second = make_sample(flat(101, 3, 2), [[1, 1, 3, 2]], with_masks=True, first_class=7)
    mixed = blend([first, second], tf.constant(0.25))
    # 0.25 * 200 + 0.75 * 101 = 125.75; where only one is, 50 or 75.75.
    assert mixed.image.numpy()[..., 0].tolist() == [[126, 126, 50], [126, 126, 50], [76, 76, 0]]
    assert mixed.image.dtype == tf.uint8
    assert mixed.boxes.numpy().tolist() == [[0, 0, 2, 2], [1, 1, 3, 2]]
    assert mixed.classes.numpy().tolist() == [1, 7]
    assert mixed.masks is not None
    assert mixed.masks.numpy().tolist() == [
        [[1, 1, 0], [1, 1, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 1, 0], [0, 1, 0]],
    ]


@pytest.mark.parametrize(
    ("share", "areas"),
    [(1.0, [4, 0]), (0.95, [4, 0]), (0.5, [4, 4]), (0.05, [0, 4]), (0.0, [0, 4])],
)
def test_what_cannot_be_seen_has_no_box(make_sample, share, areas):
    samples = [make_sample(flat(level, 4, 4), [[0, 0, 2, 2]]) for level in (9, 99)]
    mixed = blend(samples, tf.constant(share))
    sides = mixed.boxes.numpy()[:, 2:] - mixed.boxes.numpy()[:, :2]
    assert sides.prod(axis=1).tolist() == areas
    if share in (0.0, 1.0):
        np.testing.assert_array_equal(mixed.image, samples[int(share == 0)].image)


@pytest.mark.parametrize("alpha", [0.2, 1.5, 8.0])
def test_shares_have_the_moments_of_the_beta_distribution(make_sample, alpha):
    samples = [make_sample(flat(250, 1, 1)), make_sample(flat(0, 1, 1))]
    drawn = tf.data.Dataset.range(3000).map(
        lambda number: mixup(samples, tf.stack([number, 5]), alpha=alpha).image[0, 0, 0]
    )
    shares = np.array(list(drawn.as_numpy_iterator())) / 250
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean() == pytest.approx(0.5, abs=5 * (variance / 3000) ** 0.5)
    assert shares.var() == pytest.approx(variance, rel=0.1)
