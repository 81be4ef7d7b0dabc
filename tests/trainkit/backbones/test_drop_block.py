from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.backbones.drop_block import DropBlock, zero_squares


def ones(*shape):
    return np.ones(shape, np.float32)


def test_one_square_by_hand():
    """A square of side 2 at (1, 2) of a 3x5 map; the other 11 of 15 pixels become 15/11."""
    corners = ones(1, 2, 4, 1)
    corners[0, 1, 2, 0] = 0.0
    outputs = np.array(zero_squares(ones(1, 3, 5, 1), corners, side=2, drop_rate=0.1))[0, :, :, 0]
    expected = np.full((3, 5), 15 / 11)
    expected[1:3, 2:4] = 0.0
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("side", "threshold"),
    # 0.1 of 48 pixels, in squares of 9 pixels with 4 * 6 corners: 0.1 * 48 / 9 / 24.
    [(1, 0.1), (3, 0.1 * 48 / 9 / 24)],
)
def test_corners_under_the_threshold_drop(side, threshold):
    corners = ones(1, 6 - side + 1, 8 - side + 1, 2)
    corners[0, 0, 0, 0] = threshold * 0.999
    corners[0, 0, 0, 1] = threshold * 1.001
    outputs = np.array(zero_squares(ones(1, 6, 8, 2), corners, side=side, drop_rate=0.1))
    assert np.sum(outputs == 0.0, axis=(0, 1, 2)).tolist() == [side**2, 0]


@pytest.mark.parametrize("shape", [(7, 7), (6, 6), (5, 20), (20, 5), (2, 9), (1, 1), (1, 30)])
def test_any_map_loses_its_share_and_keeps_its_mean(shape):
    """Sides up to 7 in maps down to one pixel; what goes is whole squares, 0.2 at most."""
    layer = DropBlock(keep_prob=0.8, size=7, schedule_steps=0, seed=0)
    outputs = np.array(layer(ones(40, *shape, 50), training=True))
    dropped = np.mean(outputs == 0.0)
    side = min(7, *shape)
    overlapping = side > 1 and shape != (side, side)
    assert (0.1 if overlapping else 0.18) < dropped < 0.21
    np.testing.assert_allclose(np.mean(outputs), 1.0, rtol=1e-4)
    if shape == (side, side):  # one square is the whole map
        np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[:, :1, :1], outputs.shape))
    # Each channel of each image has its own.
    assert np.var(np.mean(outputs == 0.0, axis=(1, 2))) > 0


def test_inference_and_keeping_all_change_nothing():
    inputs = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        DropBlock(keep_prob=0.1, size=7, schedule_steps=0, seed=0)(inputs), inputs
    )
    np.testing.assert_array_equal(
        DropBlock(keep_prob=1.0, size=7, schedule_steps=0, seed=0)(inputs, training=True), inputs
    )


def test_nothing_left_is_no_number_that_is_not_finite():
    outputs = zero_squares(
        ones(1, 2, 2, 1), np.zeros((1, 1, 1, 1), np.float32), side=2, drop_rate=1
    )
    np.testing.assert_array_equal(outputs, np.zeros((1, 2, 2, 1)))


def test_share_rises_with_the_calls_in_training():
    """Of 4 steps: 0, 1/8, 1/4, 3/8, 1/2 and 1/2 of the pixels; the count is a variable."""
    layer = DropBlock(keep_prob=0.5, size=1, schedule_steps=4, name="drop_block", seed=0)
    call = tf.function(lambda: layer(ones(4, 20, 20, 20), training=True))
    layer.build((4, 20, 20, 20))
    shares = [float(np.mean(np.array(call()) == 0.0)) for _ in range(6)]
    np.testing.assert_allclose(shares, [0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 1 / 2], atol=0.015)
    layer(ones(1, 8, 8, 1))
    counts = {v.path: int(v.numpy()) for v in layer.variables if "calls" in v.path}
    assert counts == {"drop_block/calls": 6}


def test_restored_variables_continue_the_sequence():
    inputs = ones(2, 8, 8, 4)
    first, second = (DropBlock(size=3, schedule_steps=3, seed=5, keep_prob=0.9) for _ in range(2))
    for layer in (first, second):
        layer.build(inputs.shape)
    drawn = [np.array(first(inputs, training=True)) for _ in range(2)]
    assert np.any(drawn[0] != drawn[1])
    for ours, theirs in zip(second.variables, first.variables, strict=True):
        ours.assign(theirs)
    np.testing.assert_array_equal(second(inputs, training=True), first(inputs, training=True))


def test_gradient_is_the_mask():
    inputs = tf.constant(np.random.default_rng(0).normal(size=(2, 6, 6, 3)).astype(np.float32))
    layer = DropBlock(keep_prob=0.5, size=3, schedule_steps=0, seed=0)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs: Any = layer(inputs, training=True)
    gradient: Any = tape.gradient(outputs, inputs)
    np.testing.assert_allclose(gradient, outputs / inputs, rtol=1e-5)


def test_half_precision_keeps_its_type():
    keras.config.set_dtype_policy("mixed_bfloat16")
    outputs = DropBlock(size=3, keep_prob=0.9, schedule_steps=0, seed=0)(
        ones(2, 8, 8, 4), training=True
    )
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
