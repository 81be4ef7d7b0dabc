import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.masks import pack_masks, placed_masks, unpack_masks
from tpudet.trainkit.images.canvas import place_on_canvas

HEIGHT, WIDTH = 48, 80


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels)[1].tobytes()


def place(image: np.ndarray, **changes):
    options = {"scale": 1.0, "position": (0.0, 0.0), "flip": False, **changes}
    return place_on_canvas(tf.constant(png(image)), 64, 64, **options)


def decode(encoded, placed, *, rows=None, count=None, flip=False) -> tf.Tensor:
    count = len(encoded) if count is None else count
    rows = tf.constant(range(count) if rows is None else rows, tf.int64)
    encoded = tf.constant(encoded, tf.string)
    return placed_masks(encoded, tf.constant(count), rows, placed, tf.constant(flip))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("scale", "position"), [(1.0, (0, 0)), (0.4, (0, 0)), (1.9, (0.3, 0.7))])
def test_a_mask_lies_where_the_image_shows_the_object(flip, scale, position):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    cv2.ellipse(mask, (50, 20), (22, 12), 30, 0, 360, 1, -1)
    placed = place(mask * 255, scale=scale, position=position, flip=flip)
    drawn = decode([png(mask)], placed, flip=flip)[0]
    shown = placed.image.numpy()[..., 0]
    assert drawn.shape == shown.shape
    # Where the image is quite black or white; between them lie interpolated edges.
    assert (np.isin(shown, [0, 255])).mean() > 0.75
    np.testing.assert_array_equal(drawn.numpy()[shown == 255], 1)
    np.testing.assert_array_equal(drawn.numpy()[shown == 0], 0)


def test_masks_may_overlap():
    masks = np.zeros((3, HEIGHT, WIDTH), np.uint8)
    masks[0, 10:20, 10:20] = 1
    masks[1] = 1
    masks[2, 15:30, 15:40] = 255
    placed = place_on_canvas(
        tf.constant(png(masks[1])), HEIGHT, WIDTH, scale=1.0, position=(0, 0), flip=False
    )
    encoded = [*map(png, masks)]
    np.testing.assert_array_equal(decode(encoded, placed), masks > 0)
    np.testing.assert_array_equal(decode(encoded, placed, rows=[2, 0]), masks[[2, 0]] > 0)
    assert decode(encoded, placed, rows=[]).shape == (0, HEIGHT, WIDTH)


def test_masks_that_are_not_wanted_or_do_not_fit_are_not_decoded(monkeypatch):
    placed = place(np.ones((HEIGHT, WIDTH), np.uint8))
    encoded = [b"no PNG", png(np.ones((HEIGHT, WIDTH), np.uint8))]
    assert decode(encoded, placed, rows=[1]).numpy().all()
    with pytest.raises(tf.errors.InvalidArgumentError, match="An image is no PNG"):
        decode(encoded, placed, rows=[0])
    monkeypatch.setattr(tf.io, "decode_png", lambda *_, **__: pytest.fail("it is decoded"))
    for other in (np.ones((2**14, HEIGHT), np.uint8), np.ones((WIDTH, HEIGHT), np.uint8)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="of masks, and of their image"):
            decode([png(other)], placed, rows=[0])


def test_a_record_without_masks_has_empty_ones():
    placed = place(np.ones((HEIGHT, WIDTH), np.uint8))
    empty = decode([], placed, rows=[0, 1, 2], count=3)
    assert empty.shape == (3, *placed.image.shape[:2])
    assert not empty.numpy().any()


@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 4, 13), (1, 1, 1), (0, 4, 9)])
def test_packed_masks_are_an_eighth_and_come_back(shape):
    masks = np.random.default_rng(0).integers(0, 2, shape, np.uint8)
    packed = pack_masks(tf.constant(masks))
    np.testing.assert_array_equal(packed, np.packbits(masks, axis=2))
    np.testing.assert_array_equal(unpack_masks(packed, tf.constant(shape[2])), masks)


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ([png(np.ones((8, 9), np.uint8))] * 2, "heights, widths of masks, and of their image"),
        ([png(np.ones((HEIGHT, WIDTH), np.uint8))], "masks, objects"),
    ],
)
def test_masks_that_do_not_fit_are_named(masks, words):
    placed = place(np.ones((HEIGHT, WIDTH), np.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        decode(masks, placed, rows=[0], count=2)
