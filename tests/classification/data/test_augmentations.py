"""Augmentations of single images and of pairs, by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.data.augmentations import (
    CHANGES,
    apply_rand_augment,
    cutmix,
    mixup,
    move_image,
)
from tpudet.classification.data.sample import Sample
from tpudet.detection.data.augmentations.rand_augment import CHANGES as WITH_BOXES
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.images.moves import pixel_unit
from tpudet.trainkit.images.rand_augment import NAMES, operation_amounts

SEED = tf.constant([3, 4], tf.int64)


def sample(value: int, label: int) -> Sample:
    image = tf.fill([40, 60, 3], tf.constant(value, tf.uint8))
    return Sample(image, tf.one_hot(label, 2), SEED, tf.constant(label, tf.int64))


def test_cutmix_pastes_a_rectangle_and_mixes_targets_by_its_pixels() -> None:
    pasted_shares = []
    for index in range(20):
        seed = tf.constant([1, index], tf.int64)
        mixed = cutmix([sample(10, 0), sample(200, 1)], seed, alpha=1.0)
        pasted = mixed.image.numpy()[..., 0] == 200
        assert (mixed.image.numpy()[~pasted] == 10).all()
        rows, columns = np.flatnonzero(pasted.any(axis=1)), np.flatnonzero(pasted.any(axis=0))
        assert pasted.sum() == len(rows) * len(columns)
        share = pasted.mean()
        np.testing.assert_allclose(mixed.targets, [1 - share, share], atol=1e-6)
        pasted_shares.append(share)
    assert min(pasted_shares) < 0.2 < 0.5 < max(pasted_shares)


def test_mixup_keeps_the_record_of_the_first() -> None:
    mixed = mixup([sample(0, 0), sample(200, 1)], SEED, alpha=1.0)
    share = float(mixed.targets[1])
    assert int(mixed.record) == 0
    np.testing.assert_allclose(mixed.image[0, 0], np.full(3, 200 * share), atol=0.51)


def test_nothing_to_move_moves_nothing() -> None:
    image = tf.constant(np.random.default_rng(0).integers(0, 256, (20, 30, 3)), tf.uint8)
    still = move_image(image, SEED, rotation=0.0, shift=0.0, scale=0.0)
    np.testing.assert_array_equal(still, image)


def test_a_shift_moves_by_whole_pixels_what_it_says() -> None:
    """draws[2] and draws[3] are of x and y; what comes in is black."""
    image = tf.fill([40, 40, 3], tf.constant(255, tf.uint8))
    moved = move_image(image, SEED, rotation=0.0, shift=0.5, scale=0.0).numpy()[..., 0]
    draws = tf.random.stateless_uniform([4], SEED, -1.0, 1.0, alg="philox").numpy()
    expected = np.prod(1.0 - 0.5 * np.abs(draws[2:]))
    assert abs((moved > 127).mean() - expected) < 0.03
    columns = np.flatnonzero((moved > 127).any(axis=0))
    assert (columns[0] > 0) == (draws[2] > 0)


def test_a_turn_keeps_the_centre() -> None:
    image = np.zeros((41, 61, 3), np.uint8)
    image[18:23, 28:33] = 255
    moved = move_image(tf.constant(image), SEED, rotation=40.0, shift=0.0, scale=0.0).numpy()
    y, x = np.nonzero(moved[..., 0] > 127)
    np.testing.assert_allclose([y.mean(), x.mean()], [20, 30], atol=0.3)
    assert abs(len(y) - 25) <= 5


def photo() -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).integers(20, 230, (48, 64, 3)), tf.uint8)


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_of_rand_augment_gives_the_pixels_of_a_detectors(name: str) -> None:
    """Detection's are held to Pillow. At magnitude 0 all but two leave the image as it is."""
    annotated = AnnotatedImage(photo(), tf.zeros([0, 4]), tf.zeros([0], tf.bool), None)
    for amount in operation_amounts(name, 7.0):
        expected = WITH_BOXES[name](
            annotated, tf.constant(amount), pixel_unit(annotated.image), SEED
        )
        found = CHANGES[name](photo(), tf.constant(amount), SEED)
        np.testing.assert_array_equal(found, expected.image)
        assert (name == "identity") == (found.numpy() == photo().numpy()).all()
    if name not in ("auto_contrast", "equalize"):
        for amount in operation_amounts(name, 0.0):
            still = CHANGES[name](photo(), tf.constant(amount), SEED)
            np.testing.assert_array_equal(still, photo())


def test_rand_augment_is_a_function_of_the_seed_and_draws_every_operation() -> None:
    """Of 96 images with one operation each, 1/14 of which is none, about 7 stay."""

    def changed(index: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(9, tf.int64), index])
        return apply_rand_augment(photo(), seed, num_ops=1, magnitude=8.0)

    first, second = (
        np.stack(list(tf.data.Dataset.range(96).map(changed).as_numpy_iterator())) for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    still = (first == photo().numpy()).all(axis=(1, 2, 3)).sum()
    assert 1 <= still <= 16
    # Thirteen others, eight of which have two amounts or directions.
    assert len(np.unique(first.reshape(96, -1), axis=0)) >= 18
