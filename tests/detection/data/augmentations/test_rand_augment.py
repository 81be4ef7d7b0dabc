"""RandAugment."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tpudet.detection.data.augmentations.rand_augment import (
    OPERATIONS,
    Operation,
    OperationSequence,
    apply_rand_augment,
    apply_sequence,
)
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.images.rand_augment import operation_amounts


def seed_of(index) -> tf.Tensor:
    return tf.stack([tf.constant(4, tf.int64), tf.cast(index, tf.int64)])


def sample_image() -> AnnotatedImage:
    random = np.random.default_rng(0)
    image = tf.constant(random.integers(20, 230, (60, 80, 3), np.uint8))
    boxes = tf.constant([[5.0, 6.0, 30.0, 40.0], [20.0, 30.0, 60.0, 80.0]])
    masks = np.zeros((2, 60, 80), np.uint8)
    masks[0, 5:30, 6:40] = masks[1, 20:60, 30:80] = 1
    return AnnotatedImage(image, boxes, tf.constant([False, False]), tf.constant(masks))


def augmented(count: int, **options) -> list[tuple]:
    run = lambda index: tuple(apply_rand_augment(sample_image(), seed_of(index), **options))  # noqa: E731
    return list(tf.data.Dataset.range(count).map(run, num_parallel_calls=2, deterministic=True))


def carried_out(operation: Operation, amount: float, seed: tf.Tensor) -> AnnotatedImage:
    steps = OperationSequence(tf.constant([0]), tf.constant([amount]), tf.constant([1.0]))
    return apply_sequence(sample_image(), [operation], steps, seed)


WITH_STRENGTH = [op for op in OPERATIONS if op.name not in ("auto_contrast", "equalize")]


@pytest.mark.parametrize("operation", WITH_STRENGTH, ids=str)
def test_magnitude_zero_changes_nothing(operation):
    for amount in operation_amounts(operation.name, 0.0):
        for old, new in zip(
            sample_image(), carried_out(operation, amount, seed_of(1)), strict=True
        ):
            np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("operation", "magnitude", "amounts"),
    [
        ("rotate", 5.0, (15.0, 15.0)),
        ("shear_y", 10.0, (0.3, 0.3)),
        ("translate_x", 4.0, (100.0, 100.0)),
        ("posterize", 5.0, (6.0, 6.0)),
        ("posterize", 10.0, (4.0, 4.0)),
        ("solarize", 2.5, (192.0, 192.0)),
        ("solarize", 10.0, (0.0, 0.0)),
        ("color", 5.0, (0.55, 1.45)),
    ],
)
def test_amounts(operation, magnitude, amounts):
    assert operation_amounts(operation, magnitude) == pytest.approx(amounts)


@pytest.mark.parametrize(
    ("operation", "amount", "pillows"),
    [
        ("brightness", 0.37, lambda image: ImageEnhance.Brightness(image).enhance(0.37)),
        ("sharpness", 1.63, lambda image: ImageEnhance.Sharpness(image).enhance(1.63)),
        ("solarize", 192, lambda image: ImageOps.solarize(image, 192)),
        ("posterize", 5, lambda image: ImageOps.posterize(image, 5)),
        ("equalize", 0, ImageOps.equalize),
        ("auto_contrast", 0, ImageOps.autocontrast),
    ],
)
def test_operations_are_pillows(operation, amount, pillows):
    after = carried_out(Operation(operation), float(amount), seed_of(2))
    expected = np.asarray(pillows(Image.fromarray(sample_image().image.numpy())))
    # A factor is float32 here and a Python number there.
    assert np.abs(after.image.numpy().astype(int) - expected).max() <= (amount % 1 > 0)


def test_shapes_types_boxes_and_reproduction():
    before = tuple(part for part in sample_image() if part is not None)
    first, again = (augmented(24, num_ops=3, magnitude=9.0) for _ in range(2))
    for new, repeated in zip(first, again, strict=True):
        for old, one, other in zip(before, new, repeated, strict=True):
            assert (one.shape, one.dtype) == (old.shape, old.dtype)
            np.testing.assert_array_equal(one, other)
        boxes = new[1].numpy()
        assert np.all((boxes[:, :2] <= boxes[:, 2:]) & (boxes[:, :2] >= 0))
        assert np.all(boxes <= [60, 80, 60, 80])
        # A mask has pixels only in its box, which the last move may have cut at half a pixel.
        for box, mask in zip(boxes, new[3].numpy(), strict=True):
            rows, columns = np.nonzero(mask)
            if len(rows):
                assert rows.min() >= box[0] - 1.5
                assert columns.min() >= box[1] - 1.5
                assert rows.max() <= box[2] + 0.5
                assert columns.max() <= box[3] + 0.5
    # With a seed of its own each; two may draw the same of what has no direction.
    assert len({new[0].numpy().tobytes() for new in first}) > 20


def test_identity_comes_up_in_a_fourteenth():
    before = sample_image().image.numpy()
    same = [np.array_equal(new[0], before) for new in augmented(280, num_ops=1, magnitude=10.0)]
    # Five standard deviations around 280 / 14 = 20.
    assert 0 < sum(same) < 42
