import cv2
import numpy as np
import pytest
import tensorflow as tf

from detection.data.canvas import place_on_canvas
from detection.data.masks import instance_map

HEIGHT, WIDTH = 48, 80


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def place(picture: np.ndarray, **changes):
    options = {"scale": 1.0, "position": (0.0, 0.0), "flip": False, **changes}
    return place_on_canvas(tf.constant(png(picture)), 64, 64, **options)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("scale", "position"), [(1.0, (0, 0)), (0.4, (0, 0)), (1.9, (0.3, 0.7))])
def test_the_map_lies_where_the_picture_shows_the_object(flip, scale, position):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.ellipse(mask, (50, 20), (22, 12), 30, 0, 360, 1, -1)
    placed = place(mask * 255, scale=scale, position=position, flip=flip)
    drawn = instance_map(tf.constant([png(mask)]), tf.constant([9.0]), placed, tf.constant(flip))
    shown = placed.image.numpy()[..., 0]
    assert drawn.shape == shown.shape
    # Where the picture is quite black or white; between them lie interpolated edges.
    assert (np.isin(shown, [0, 255])).mean() > 0.75
    np.testing.assert_array_equal(drawn.numpy()[shown == 255], 1)
    np.testing.assert_array_equal(drawn.numpy()[shown == 0], 0)


def test_the_smallest_instance_gets_a_pixel_of_several():
    masks = [np.zeros((HEIGHT, WIDTH), np.uint8) for _ in range(3)]
    masks[0][10:20, 10:20] = 1
    masks[1][:] = 1
    masks[2][15:30, 15:40] = 255
    placed = place_on_canvas(
        tf.constant(png(masks[1])), HEIGHT, WIDTH, scale=1.0, position=(0, 0), flip=False
    )
    areas = tf.constant([float((mask > 0).sum()) for mask in masks])
    drawn = instance_map(tf.constant([*map(png, masks)]), areas, placed, tf.constant(False)).numpy()
    pixels = [(drawn == number).sum() for number in range(4)]
    assert pixels == [0, 100, 48 * 80 - 100 - (15 * 25 - 25), 15 * 25 - 25]


def test_a_record_without_masks_has_an_empty_map():
    placed = place(np.ones((HEIGHT, WIDTH), np.uint8))
    drawn = instance_map(tf.constant([], tf.string), tf.ones([3]), placed, tf.constant(False))
    assert drawn.shape == placed.image.shape[:2]
    assert not drawn.numpy().any()


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ([png(np.ones((8, 9), np.uint8))] * 2, "height, width of a mask and of its picture"),
        ([png(np.ones((HEIGHT, WIDTH), np.uint8))], "masks, objects"),
    ],
)
def test_masks_that_do_not_fit_are_named(masks, words):
    placed = place(np.ones((HEIGHT, WIDTH), np.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        instance_map(tf.constant(masks), tf.ones([2]), placed, tf.constant(False))
