import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.ops.roi_align import assign_levels, neighbors, roi_align

LEVELS = (2, 3, 4)
CANVAS = (64, 96)


def make_features(batch=2, channels=3, seed=0, levels=LEVELS):
    rng = np.random.default_rng(seed)
    return {
        level: rng.normal(size=(batch, CANVAS[0] >> level, CANVAS[1] >> level, channels)).astype(
            np.float32
        )
        for level in levels
    }


def make_boxes(batch=2, count=12, seed=0):
    """Of all sizes, some over the edge of the canvas, one without area, one far outside."""
    rng = np.random.default_rng(seed)
    centers = rng.uniform(-0.1, 1.1, (batch, count, 2)) * CANVAS
    halves = 2.0 ** rng.uniform(-1, 6, (batch, count, 2))
    boxes = np.concatenate([centers - halves, centers + halves], axis=-1)
    boxes[:, 0] = [10, 20, 10, 20]
    boxes[:, 1] = [500, 500, 520, 540]
    return boxes.astype(np.float32)


def value_at(image, y, x):
    """The map's value at a point where cell centres are whole numbers."""
    height, width = image.shape[:2]
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(image.shape[-1])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = math.floor(y), math.floor(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    return (
        image[top, left] * (1 - dy) * (1 - dx)
        + image[top, right] * (1 - dy) * dx
        + image[bottom, left] * dy * (1 - dx)
        + image[bottom, right] * dy * dx
    )


def plain_roi_align(features, boxes, *, output_size, sampling_ratio, aligned):
    """The definition, point by point."""
    levels = sorted(features)
    batch, count = boxes.shape[:2]
    pooled = np.zeros((batch, count, output_size, output_size, features[levels[0]].shape[-1]))
    for image, number in np.ndindex(batch, count):
        y1, x1, y2, x2 = boxes[image, number].astype(np.float64)
        side = math.sqrt(max(y2 - y1, 0) * max(x2 - x1, 0))
        level = math.floor(4 + math.log2(max(side, 1e-3) / 224) + 1e-6)
        level = min(max(level, levels[0]), levels[-1])
        y1, x1, y2, x2 = (corner / 2**level for corner in (y1, x1, y2, x2))
        height, width = y2 - y1, x2 - x1
        if aligned:
            y1, x1 = y1 - 0.5, x1 - 0.5
        else:
            height, width = max(height, 1), max(width, 1)
        step = 1 / (output_size * sampling_ratio)
        for p, q, i, j in np.ndindex(output_size, output_size, sampling_ratio, sampling_ratio):
            y = y1 + height * (p * sampling_ratio + i + 0.5) * step
            x = x1 + width * (q * sampling_ratio + j + 0.5) * step
            pooled[image, number, p, q] += value_at(features[level][image], y, x)
    return pooled / sampling_ratio**2


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("output_size", "sampling_ratio"), [(7, 2), (4, 1), (2, 3)])
def test_equals_the_plain_statement(output_size, sampling_ratio, aligned):
    settings = {
        "output_size": output_size,
        "sampling_ratio": sampling_ratio,
        "aligned": aligned,
    }
    features = make_features()
    boxes = make_boxes()
    np.testing.assert_allclose(
        roi_align(features, boxes, **settings),
        plain_roi_align(features, boxes, **settings),
        rtol=1e-4,
        atol=1e-5,
    )


def test_boxes_of_all_levels_equal_the_plain_statement():
    rng = np.random.default_rng(0)
    features = {
        level: rng.normal(size=(1, 1024 >> level, 512 >> level, 1)).astype(np.float32)
        for level in (2, 3, 4, 5)
    }
    sides = np.array([30, 111, 113, 223, 225, 447, 449, 500])
    boxes = np.stack([[7.3, 5.9, 7.3 + side, 5.9 + side] for side in sides])[None]
    boxes = boxes.astype(np.float32)
    found = np.array(assign_levels(boxes[0], min_level=2, max_level=5))
    np.testing.assert_array_equal(found, [2, 2, 3, 3, 4, 4, 5, 5])
    settings = {"output_size": 7, "sampling_ratio": 2, "aligned": True}
    np.testing.assert_allclose(
        roi_align(features, boxes, **settings),
        plain_roi_align(features, boxes, **settings),
        rtol=1e-3,
        atol=1e-4,
    )


def test_levels_by_hand():
    sides = np.array([0, 1, 111.9, 112, 224, 447.9, 448, 5000], np.float32)
    boxes = np.stack([sides * 0, sides * 0, sides, sides], axis=-1)
    found = assign_levels(boxes, min_level=2, max_level=5)
    np.testing.assert_array_equal(found, [2, 2, 2, 3, 4, 4, 5, 5])
    # By the area: 56 x 448 is as large as 158.4 x 158.4.
    assert int(assign_levels(np.array([0, 0, 56, 448.0]), min_level=2, max_level=6)) == 3


def test_neighbors_by_hand():
    found = neighbors(np.array([-0.7, 0.25, 3.0, 3.4], np.float32), 4.0)
    np.testing.assert_array_equal(found.low, [0, 0, 3, 3])
    np.testing.assert_array_equal(found.high, [1, 1, 3, 3])
    np.testing.assert_allclose(found.high_weight, [0, 0.25, 0, 0])


def test_a_plane_is_sampled_exactly_at_every_fraction_of_a_pixel():
    """Of the map y, x at cell centres, bins take their own centres, wherever the box lies."""
    rows, columns = np.meshgrid(np.arange(16), np.arange(24), indexing="ij")
    plane = ((np.stack([rows, columns], axis=-1) + 0.5) * 4).astype(np.float32)[None]
    for shift in np.linspace(0, 8, 17):
        box = np.array([8 + shift, 10 + shift, 28 + shift, 42 + shift], np.float32)
        pooled = roi_align(
            {2: plane}, box[None, None], output_size=4, sampling_ratio=2, aligned=True
        )
        shares = (np.arange(4) + 0.5) / 4
        np.testing.assert_allclose(np.array(pooled)[0, 0, :, 0, 0], box[0] + 20 * shares, rtol=1e-5)
        np.testing.assert_allclose(np.array(pooled)[0, 0, 0, :, 1], box[1] + 32 * shares, rtol=1e-5)


def test_one_box_by_hand():
    image = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    # Cells 1 to 3 of a stride of 4 pixels, whose centres are the bins' own.
    box = np.array([[[4, 4, 12, 12]]], np.float32)
    pooled = roi_align({2: image}, box, output_size=2, sampling_ratio=1, aligned=True)
    np.testing.assert_array_equal(np.array(pooled)[0, 0, :, :, 0], [[5, 6], [9, 10]])
    # Without the shift, half a cell further: the means of four cells.
    pooled = roi_align({2: image}, box, output_size=2, sampling_ratio=1, aligned=False)
    np.testing.assert_array_equal(np.array(pooled)[0, 0, :, :, 0], [[7.5, 8.5], [11.5, 12.5]])


def test_gradient_is_that_of_the_plain_statement():
    """The plain statement is linear in the features, so differences give its gradient exactly."""
    features, boxes = make_features(batch=1, channels=1), make_boxes(batch=1, count=5)
    settings = {"output_size": 3, "sampling_ratio": 2, "aligned": True}
    factors = np.random.default_rng(1).normal(size=(1, 5, 3, 3, 1)).astype(np.float32)
    inputs: Any = {level: tf.constant(value) for level, value in features.items()}
    watched: Any = tf.constant(boxes)
    with tf.GradientTape() as tape:
        tape.watch([*inputs.values(), watched])
        total = tf.reduce_sum(roi_align(inputs, watched, **settings) * factors)
    gradients: Any = tape.gradient(total, [*inputs.values(), watched])
    assert gradients[-1] is None
    rng = np.random.default_rng(2)
    for (level, value), gradient in zip(features.items(), gradients, strict=False):
        direction = rng.normal(size=value.shape)
        changed = {**features, level: value + direction}
        rise = (
            plain_roi_align(changed, boxes, **settings)
            - plain_roi_align(features, boxes, **settings)
        ) * factors
        slope = np.sum(tf.convert_to_tensor(gradient).numpy() * direction)
        np.testing.assert_allclose(slope, rise.sum(), rtol=1e-3, atol=1e-3)


def test_half_precision_interpolates_in_float32():
    features = {level: tf.cast(value, tf.bfloat16) for level, value in make_features().items()}
    settings = {"output_size": 4, "sampling_ratio": 2, "aligned": True}
    pooled = roi_align(features, make_boxes(), **settings)
    assert pooled.dtype == tf.bfloat16
    whole = {level: tf.cast(value, tf.float32) for level, value in features.items()}
    expected = tf.cast(roi_align(whole, make_boxes(), **settings), tf.bfloat16)
    np.testing.assert_array_equal(tf.cast(pooled, tf.float32), tf.cast(expected, tf.float32))


def test_batched_equals_single_and_traced_equals_eager():
    features, boxes = make_features(batch=3), make_boxes(batch=3)
    settings = {"output_size": 3, "sampling_ratio": 2, "aligned": True}
    together = np.array(roi_align(features, boxes, **settings))
    for image in range(3):
        alone = roi_align(
            {level: value[image : image + 1] for level, value in features.items()},
            boxes[image : image + 1],
            **settings,
        )
        np.testing.assert_allclose(alone[0], together[image], rtol=1e-6, atol=1e-6)
    traced = tf.function(lambda f, b: roi_align(f, b, **settings))(features, boxes)
    np.testing.assert_allclose(traced, together, rtol=1e-5, atol=1e-5)
