"""Moves against Pillow's geometry; boxes and masks against the pixels that they stand for."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tpudet.detection.data.augmentations import box_moves
from tpudet.detection.data.augmentations.pixels import box_cutout, cutout
from tpudet.detection.data.sample import AnnotatedImage
from tpudet.trainkit.images.moves import draw_sign, pixel_unit

SEED = tf.constant([3, 4], tf.int64)
GREY = (128, 128, 128)


def image_with_red(height: int = 90, width: int = 120) -> AnnotatedImage:
    """A red rectangle on blue noise, its box, its mask, and a second box without area."""
    random = np.random.default_rng(1)
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 2] = random.integers(0, 256, (height, width))
    image[30:51, 40:77] = (255, 0, 0)
    masks = np.zeros((2, height, width), np.uint8)
    masks[0, 30:51, 40:77] = 1
    boxes = [[30.0, 40.0, 51.0, 77.0], [0.0, 0.0, 0.0, 0.0]]
    return annotated_image(tf.constant(image), boxes, tf.constant(masks))


def annotated_image(image, boxes, masks=None, crowds=()) -> AnnotatedImage:
    is_crowd = [row in crowds for row in range(len(boxes))]
    return AnnotatedImage(image, tf.constant(boxes, tf.float32), tf.constant(is_crowd), masks)


def first_mask(annotated: AnnotatedImage) -> np.ndarray:
    assert annotated.masks is not None
    return annotated.masks[0].numpy()


def extent(marked: np.ndarray) -> list[int]:
    rows, columns = np.nonzero(marked)
    return [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]


def is_red(image) -> np.ndarray:
    return np.all(np.asarray(image) == (255, 0, 0), axis=-1)


def affine(image, matrix) -> np.ndarray:
    image = Image.fromarray(np.asarray(image))
    how = {"resample": Image.Resampling.NEAREST, "fillcolor": GREY}
    return np.asarray(image.transform(image.size, Image.Transform.AFFINE, tuple(matrix), **how))


@pytest.mark.parametrize(
    "matrix",
    [
        (1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        (1.0, 0.237, 0.0, 0.0, 1.0, 0.0),
        (1.0, 0.0, 0.0, -0.113, 1.0, 0.0),
        (0.913, 0.207, 5.33, -0.101, 1.097, -7.713),
        (-1.0, 0.0, 120.0, 0.0, 1.0, 0.0),
    ],
)
def test_warp_equals_pillow_and_takes_boxes_and_masks_along(matrix):
    annotated = image_with_red()
    warped = box_moves.warp(annotated, tf.constant(matrix))
    expected = affine(annotated.image, matrix)
    # Pillow counts in fixed point, so a place near the border of two pixels may fall to the other.
    assert np.mean(np.any(warped.image != expected, axis=-1)) < 2e-3
    np.testing.assert_array_equal(first_mask(warped), is_red(warped.image))
    assert warped.masks is not None
    assert not np.any(warped.masks[1])
    np.testing.assert_array_equal(warped.boxes[1], [0, 0, 0, 0])
    np.testing.assert_allclose(warped.boxes[0], extent(is_red(warped.image)), atol=1.0)


@pytest.mark.parametrize("degrees", [0.0, 12.0, 30.0, 90.0])
def test_rotate_equals_pillow(degrees):
    annotated = image_with_red()
    signed = float(draw_sign(SEED)) * degrees
    turned = box_moves.rotate(annotated, degrees, SEED)
    how = {"resample": Image.Resampling.NEAREST, "fillcolor": GREY}
    expected = np.asarray(Image.fromarray(annotated.image.numpy()).rotate(signed, **how))
    assert np.mean(np.any(turned.image != expected, axis=-1)) < 2e-3
    np.testing.assert_allclose(turned.boxes[0], extent(is_red(turned.image)), atol=1.0)
    np.testing.assert_array_equal(first_mask(turned), is_red(turned.image))


def test_rotated_box_by_hand():
    # A square of side 20 about the middle of 100 x 100, turned by 30 degrees: its sides become
    # 20 (cos 30 + sin 30) = 27.32.
    image = tf.zeros([100, 100, 3], tf.uint8)
    annotated = annotated_image(image, [[40, 40, 60, 60]])
    half = 10 * (math.cos(math.pi / 6) + 0.5)
    turned = box_moves.rotate(annotated, 30.0, SEED)
    np.testing.assert_allclose(turned.boxes[0], [50 - half] * 2 + [50 + half] * 2, atol=1e-3)
    assert turned.masks is None


@pytest.mark.parametrize("box", [[0, 20, 0, 120], [0, 20, 0.2, 180], [0, 20, 0.99, 180]])
@pytest.mark.parametrize("degrees", [0.0, 30.0])
def test_less_than_a_pixel_of_a_box_is_nothing_to_turn(box, degrees):
    # Turned by 30 degrees the second one was 53.6 x 119.4 pixels.
    annotated = annotated_image(tf.zeros([128, 200, 3], tf.uint8), [box])
    sliver = annotated._replace(boxes=box_moves.clip_to_image(annotated.boxes, annotated.image))
    for seed in ([3, 4], [3, 5], [3, 6]):
        turned = box_moves.rotate(sliver, degrees, tf.constant(seed, tf.int64))
        assert turned.boxes.numpy().tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("distance", [0.0, 13.0, 45.0, 70.0, 500.0])
def test_translate_moves_whole_pixels(axis, distance):
    annotated = image_with_red()
    for seed in ([1, 1], [1, 2], [1, 3], [1, 4]):
        seed = tf.constant(seed, tf.int64)
        signed = float(draw_sign(seed)) * distance
        moved = box_moves.translate(annotated, distance, seed, axis=axis)
        shift = (0.0, signed) if axis == 0 else (signed, 0.0)
        expected = affine(annotated.image, (1, 0, -shift[0], 0, 1, -shift[1]))
        np.testing.assert_array_equal(moved.image, expected)
        red = is_red(moved.image)
        np.testing.assert_array_equal(first_mask(moved), red)
        assert moved.boxes[0].numpy().tolist() == (extent(red) if red.any() else [0, 0, 0, 0])


def test_directions_come_up_equally_often():
    seeds = tf.data.Dataset.range(400).map(lambda k: draw_sign(tf.stack([k, 5])))
    signs = [float(sign) for sign in seeds]
    assert set(signs) == {-1.0, 1.0}
    assert abs(sum(signs)) < 100  # five standard deviations


def test_flip_is_its_own_inverse():
    annotated = image_with_red()
    flipped = box_moves.flip(annotated)
    assert flipped.boxes[0].numpy().tolist() == extent(is_red(flipped.image)) == [30, 43, 51, 80]
    np.testing.assert_array_equal(first_mask(flipped), is_red(flipped.image))
    back = box_moves.flip(flipped)
    np.testing.assert_array_equal(back.image, annotated.image)
    np.testing.assert_array_equal(back.masks, annotated.masks)


@pytest.mark.parametrize("with_masks", [True, False])
def test_in_each_box_changes_nothing_outside(with_masks):
    random = np.random.default_rng(2)
    image = tf.constant(random.integers(0, 256, (50, 60, 3), np.uint8))
    boxes = [[5.0, 6.0, 15.0, 20.0], [30.0, 30.0, 45.0, 60.0], [20.0, 20.0, 20.0, 20.0]]
    masks = np.zeros((3, 50, 60), np.uint8)
    masks[0, 5:15, 6:9] = 1  # the left edge of the first box
    annotated = annotated_image(image, boxes, tf.constant(masks) if with_masks else None)

    @tf.function
    def change(annotated):
        rows = tf.constant([0, 2], tf.int64)
        return box_moves.in_each_box(annotated, rows, lambda part, _: box_moves.flip(part))

    changed = change(annotated)
    expected = image.numpy()
    expected[5:15, 6:20] = expected[5:15, 6:20][:, ::-1]
    np.testing.assert_array_equal(changed.image, expected)
    np.testing.assert_array_equal(changed.boxes, boxes)
    if with_masks:
        assert extent(first_mask(changed)) == [5, 17, 15, 20]
    else:
        assert changed.masks is None


def test_cutout_fills_a_square_and_nothing_else():
    annotated = image_with_red(200, 300)
    sides = []
    for number in range(30):
        filled = cutout(annotated, tf.constant(10.9), tf.constant([number, 0], tf.int64))
        grey = np.all(filled.image == 128, axis=-1)
        np.testing.assert_array_equal(
            np.asarray(filled.image)[~grey], np.asarray(annotated.image)[~grey]
        )
        top, left, bottom, right = extent(grey)
        assert grey.sum() == (bottom - top) * (right - left)
        sides += [bottom - top, right - left]
        np.testing.assert_array_equal(filled.boxes, annotated.boxes)
    assert max(sides) == 20
    assert sides.count(20) > 40  # smaller only at a border
    unchanged = cutout(annotated, tf.constant(0.0), SEED)
    np.testing.assert_array_equal(unchanged.image, annotated.image)


def test_box_cutout_fills_a_share_of_the_box_of_one_object():
    boxes = [[10, 20, 50, 100], [0, 0, 0, 0], [100, 200, 140, 280], [0, 0, 200, 300]]
    annotated = annotated_image(tf.zeros([200, 300, 3], tf.uint8), boxes, crowds=[3])
    hit = [0, 0]
    for number in range(40):  # neither the removed one nor the crowd is ever drawn
        filled = box_cutout(annotated, 0.5, tf.constant([number, 0], tf.int64))
        top, left, bottom, right = extent(np.all(filled.image == 128, axis=-1))
        center = ((top + bottom) / 2, (left + right) / 2)
        inside = [
            y1 - 0.5 <= center[0] <= y2 + 0.5 and x1 - 0.5 <= center[1] <= x2 + 0.5
            for y1, x1, y2, x2 in boxes[::2]
        ]
        if top > 0 and left > 0:
            assert inside.count(True) == 1
            assert bottom - top == pytest.approx(20, abs=1)
            assert right - left == pytest.approx(40, abs=1)
            hit[inside.index(True)] += 1
    assert min(hit) > 5
    empty = annotated._replace(boxes=tf.zeros([4, 4]))
    np.testing.assert_array_equal(box_cutout(empty, 0.5, SEED).image, annotated.image)


def test_pixel_unit_is_one_for_a_coco_image():
    assert float(pixel_unit(tf.zeros([480, 640, 3], tf.uint8))) == 1.0
    assert float(pixel_unit(tf.zeros([320, 240, 3], tf.uint8))) == 0.5
