"""Flips upside down and quarter turns: boxes and masks go where the pixels go."""

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.sample import Sample
from tpudet.detection.data.turns import Turn, canvas_before, draw_turn, turn_sample


def extent(pixels: np.ndarray) -> list[int]:
    """The box around what is not 0 in [h, w]."""
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    return [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]


@pytest.mark.parametrize("upside_down", [False, True])
@pytest.mark.parametrize("quarters", range(4))
def test_boxes_and_masks_follow_the_pixels(quarters: int, upside_down: bool) -> None:
    lit = np.zeros([6, 9], np.uint8)
    lit[1:3, 2:7] = 1
    lit[1, 2] = 2  # a corner that tells one turn from another
    sample = Sample(
        image=tf.constant(np.repeat(lit[:, :, None], 3, axis=2)),
        boxes=tf.constant([[1.0, 2.0, 3.0, 7.0], [0.0, 0.0, 0.0, 0.0]]),
        classes=tf.constant([1, 2]),
        is_crowd=tf.constant([False, False]),
        masks=tf.constant(np.stack([lit > 0, np.zeros_like(lit)]).astype(np.uint8)),
        seed=tf.zeros([2], tf.int64),
        record=tf.constant(0, tf.int64),
        original_size=tf.constant([6.0, 9.0]),
        scale=tf.ones([2]),
        offset=tf.zeros([2]),
    )
    turned = turn_sample(sample, Turn(tf.constant(upside_down), tf.constant(quarters)))
    expected = np.rot90(lit[::-1] if upside_down else lit, quarters)
    np.testing.assert_array_equal(turned.image.numpy()[:, :, 0], expected)
    np.testing.assert_array_equal(turned.boxes.numpy(), [extent(expected), [0, 0, 0, 0]])
    assert turned.masks is not None
    np.testing.assert_array_equal(turned.masks.numpy()[0], expected > 0)


def test_an_image_without_objects_is_turned() -> None:
    sample = Sample(
        image=tf.zeros([6, 9, 3], tf.uint8),
        boxes=tf.zeros([0, 4]),
        classes=tf.zeros([0], tf.int32),
        is_crowd=tf.zeros([0], tf.bool),
        masks=tf.zeros([0, 6, 9], tf.uint8),
        seed=tf.zeros([2], tf.int64),
        record=tf.constant(0, tf.int64),
        original_size=tf.constant([6.0, 9.0]),
        scale=tf.ones([2]),
        offset=tf.zeros([2]),
    )
    turned = turn_sample(sample, Turn(tf.constant(False), tf.constant(1)))
    assert turned.image.shape == (9, 6, 3)
    assert turned.masks is not None
    assert turned.masks.shape == (0, 9, 6)


def test_each_turn_comes_as_often_as_any_other() -> None:
    def draw(vertical_flip: bool, quarter_turns: bool) -> np.ndarray:
        def one(number: tf.Tensor) -> tf.Tensor:
            seed = tf.stack([tf.constant(7, tf.int64), number])
            turn = draw_turn(seed, vertical_flip=vertical_flip, quarter_turns=quarter_turns)
            return turn.quarters * 2 + tf.cast(turn.upside_down, tf.int32)

        draws = tf.data.Dataset.range(1600).map(one).batch(1600).get_single_element()
        return np.bincount(draws, minlength=8)

    np.testing.assert_allclose(draw(True, True), 200, atol=60)  # 4 standard deviations are 53
    np.testing.assert_array_equal(draw(False, False), [1600] + 7 * [0])
    assert not draw(True, False)[2:].any()


def test_the_canvas_lies_before_an_odd_turn() -> None:
    sides = [
        [int(side) for side in canvas_before(Turn(tf.constant(False), tf.constant(k)), (2, 3))]
        for k in range(4)
    ]
    assert sides == [[2, 3], [3, 2], [2, 3], [3, 2]]
