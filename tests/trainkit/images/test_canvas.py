from functools import partial

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.detection.data.boxes import boxes_to_canvas, flip_boxes, has_area
from tpudet.trainkit.images.canvas import (
    decode_to_canvas,
    fit_short_side,
    place_on_canvas,
    resize_to_canvas,
    stretch,
)
from tpudet.trainkit.images.seeds import draw_placement, record_seed

CANVAS = (128, 192)


def smooth_image(height: int, width: int, cell: int = 8) -> np.ndarray:
    """RGB noise without detail finer than about half a cell of `cell` pixels."""
    random = np.random.default_rng(height * width)
    cells = (max(2, height // cell), max(2, width // cell), 3)
    coarse = random.integers(0, 256, cells, np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    parameters = [cv2.IMWRITE_JPEG_QUALITY, quality]
    return cv2.imencode(".jpg", image[..., ::-1], parameters)[1].tobytes()


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image[..., ::-1] if image.ndim == 3 else image)[1].tobytes()


@tf.function(
    input_signature=[
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([], tf.float32),
        tf.TensorSpec([2], tf.float32),
        tf.TensorSpec([], tf.bool),
    ]
)
def place(encoded, scale, position, flip):
    return place_on_canvas(encoded, *CANVAS, scale=scale, position=position, flip=flip)


@tf.function(input_signature=[tf.TensorSpec([], tf.string)])
def decode(encoded):
    return decode_to_canvas(encoded, *CANVAS)


def extent_of_red(image: np.ndarray) -> tuple[list[float], int]:
    """The box around the pixels that are more red than half, and how many there are."""
    is_red = (image[..., 0].astype(int) - image[..., 1]) > 110
    rows, columns = np.nonzero(is_red)
    return [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1], len(rows)


@pytest.mark.parametrize("encode", [jpeg, png])
@pytest.mark.parametrize("size", [(101, 67), (427, 640), (1023, 511), (333, 1601)])
def test_a_red_rectangle_is_where_its_box_says(size, encode):
    height, width = size
    original = np.array([[0.31 * height, 0.37 * width, 0.68 * height, 0.74 * width]])
    original = original.round().astype(np.float32)
    y1, x1, y2, x2 = original[0].astype(int)
    image = np.full((height, width, 3), 30, np.uint8)
    image[y1:y2, x1:x2] = (250, 30, 30)
    encoded = encode(image)
    seen = 0
    for record in range(60):
        drawn = draw_placement(
            record_seed(5, 0, record), horizontal_flip=True, scale_range=(0.1, 2.0)
        )
        placed = place(encoded, *drawn[1:], drawn.flip)
        boxes = flip_boxes(original, width) if drawn.flip else original
        boxes = boxes_to_canvas(boxes, placed.scale, placed.offset, *CANVAS)
        # Half a threshold's blur needs a few pixels to be seen at all.
        if min(boxes[0, 2] - boxes[0, 0], boxes[0, 3] - boxes[0, 1]) >= 3:
            extent, _ = extent_of_red(placed.image.numpy())
            np.testing.assert_allclose(extent, boxes[0], atol=1.0, err_msg=f"record {record}")
            seen += 1
    assert seen >= 35


def test_boxes_there_and_back():
    random = np.random.default_rng(0)
    corners = np.sort(random.uniform(0, 200, (40, 2, 2)), axis=1).reshape(40, 4)
    boxes = tf.constant(corners, tf.float32)
    scale, offset = tf.constant([0.61, 0.583]), tf.constant([17.0, 3.5])
    on_canvas = boxes_to_canvas(boxes, scale, offset, 10**4, 10**4)
    back = (on_canvas + tf.tile(offset, [2])) / tf.tile(scale, [2])
    inside = (corners.reshape(-1, 2, 2) * scale.numpy() - offset.numpy() >= 0).all(axis=(1, 2))
    inside &= has_area(on_canvas).numpy()
    assert inside.sum() > 10
    np.testing.assert_allclose(back.numpy()[inside], corners[inside], atol=1e-4)


def test_boxes_are_clipped_and_dropped_below_one_pixel():
    boxes = tf.constant(
        [
            [-10.0, 5, 30, 50],
            [10, 10, 20, 10.9],
            [10, 10, 20, 11],
            [127.5, 0, 300, 9],
            [200, 200, 300, 300],
        ]
    )
    clipped = boxes_to_canvas(boxes, tf.ones(2), tf.zeros(2), *CANVAS)
    nothing = [0, 0, 0, 0]
    expected = [[0, 5, 30, 50], nothing, [10, 10, 20, 11], nothing, nothing]
    assert clipped.numpy().tolist() == expected
    assert has_area(clipped).numpy().tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("scale", [0.4, 1.0, 1.9])
def test_flip_agrees_with_numpy(scale):
    image = smooth_image(90, 150)
    # Of what is seen of an image at its right edge, the mirror is seen at the left edge.
    mirrored = place(png(image), scale, [0.3, 0.0], True)
    expected = place(png(image[:, ::-1]), scale, [0.3, 0.999], False)
    assert mirrored.image.shape == expected.image.shape
    difference = np.abs(mirrored.image.numpy().astype(int) - expected.image.numpy())
    assert difference.max() <= 1  # equal sums in another order
    np.testing.assert_allclose(mirrored.offset, expected.offset, atol=1e-3)


@pytest.mark.parametrize(
    ("size", "factor"), [((256, 384), 2), ((512, 768), 4), ((1024, 1536), 8), ((255, 383), 2)]
)
def test_reduced_decoding_is_close_to_averaging_areas(size, factor):
    encoded = jpeg(smooth_image(*size, cell=8 * factor))
    placed = decode(encoded)
    np.testing.assert_allclose(placed.scale, [1 / factor] * 2)
    full = tf.io.decode_jpeg(encoded, channels=3).numpy()
    # A decoded pixel is `factor` original ones wide, the last one too.
    missing = [(0, -side % factor) for side in size]
    full = np.pad(full, [*missing, (0, 0)], mode="edge")
    expected = cv2.resize(full, (192, 128), interpolation=cv2.INTER_AREA)
    difference = np.abs(placed.image.numpy().astype(int) - expected)
    # Dropping the high frequencies of a block is not quite its average, and chroma is reduced
    # after its own subsampling: 0.8 to 1.2 levels here. A shift by half a pixel would give 5.
    assert difference.mean() < 1.5
    assert np.percentile(difference, 99) <= 5


@pytest.mark.parametrize(
    ("size", "scale", "reduction"),
    [
        ((192, 128), 1.0, 1.0),
        ((256, 384), 1.0, 0.5),  # exactly one half needs no more
        ((256, 384), 1.02, None),  # a little more than one half: decoded whole
        ((250, 370), 1.0, None),
        ((512, 768), 0.3, 0.125),
    ],
)
def test_rule_of_the_reduction(size, scale, reduction, monkeypatch):
    """The largest reduction that still has as many pixels as are wanted."""
    ratios = []
    crop = tf.io.decode_and_crop_jpeg

    def recorded(encoded, window, channels, ratio):
        ratios.append(ratio)
        return crop(encoded, window, channels=channels, ratio=ratio)

    monkeypatch.setattr(tf.io, "decode_and_crop_jpeg", recorded)
    encoded = jpeg(smooth_image(*size))
    place_on_canvas(encoded, *CANVAS, scale=scale, position=(0.0, 0.0), flip=False)
    assert ratios == [1 if reduction is None else round(1 / reduction)]


def test_a_crop_while_reducing_is_a_part_of_the_reduced_image():
    encoded = jpeg(smooth_image(401, 603))
    whole = tf.io.decode_jpeg(encoded, channels=3, ratio=2).numpy().astype(int)
    part = tf.io.decode_and_crop_jpeg(encoded, [30, 41, 90, 120], channels=3, ratio=2)
    assert whole.shape == (201, 302, 3)
    np.testing.assert_allclose(part, whole[30:120, 41:161], atol=2)


def test_image_of_the_canvas_size_is_copied_and_padding_is_zero():
    image = smooth_image(128, 150)
    placed = decode(png(image))
    assert np.array_equal(placed.image[:, :150], image)
    assert not np.any(placed.image[:, 150:])
    assert placed.scale.numpy().tolist() == [1, 1]
    assert placed.offset.numpy().tolist() == [0, 0]
    assert placed.original_size.numpy().tolist() == [128, 150]


def test_resizing_agrees_with_opencv():
    image = smooth_image(110, 171)
    placed = decode(png(image))
    height, width = 124, 192  # 192 / 171 * 110 = 123.5
    expected = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(placed.image[:height], expected, atol=1)
    np.testing.assert_allclose(placed.scale, [124 / 110, 192 / 171], rtol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (700, 1), (3000, 2)])
def test_extreme_shapes(size):
    height, width = size
    placed = decode(png(np.full((height, width, 3), 200, np.uint8)))
    assert placed.image.shape == (*CANVAS, 3)
    covered = placed.image.numpy()[..., 0] > 0
    assert covered[0, 0]
    assert covered.any(axis=1).sum() == 128 or covered.any(axis=0).sum() == 192


def test_gray_png_with_alpha_and_gray_jpeg_have_three_channels():
    gray = smooth_image(60, 80)[..., 0]
    encoded_jpeg = cv2.imencode(".jpg", gray)[1].tobytes()
    alpha = np.dstack([gray, gray, gray, np.full_like(gray, 9)])
    for encoded in (encoded_jpeg, png(gray), cv2.imencode(".png", alpha)[1].tobytes()):
        image = decode(encoded).image.numpy()
        assert np.array_equal(image[..., 0], image[..., 2])
        assert image[..., 0].std() > 20


def test_eager_traced_mapped_and_decoded_images_are_the_same():
    images = [smooth_image(*size) for size in ((90, 200), (300, 120), (128, 192))]
    encoded = [png(image) for image in images]
    signature = decode(encoded[0])
    types = type(signature)(*(value.dtype for value in signature))
    mapped = tf.map_fn(decode, tf.constant(encoded), fn_output_signature=types)
    resize = tf.function(
        lambda image: resize_to_canvas(image, *CANVAS),
        input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)],
    )
    for row, (image, one) in enumerate(zip(images, encoded, strict=True)):
        for other in (decode(one), resize(image), decode_to_canvas(one, *CANVAS)):
            for expected, value in zip(mapped, other, strict=True):
                assert np.array_equal(expected[row], value)


def test_large_images_that_are_no_jpeg_do_not_alias():
    # Lines one pixel wide: sampled, they would stay black or white; averaged, they are gray.
    image = np.zeros((1024, 1536, 3), np.uint8)
    image[::2] = 255
    placed = resize_to_canvas(tf.constant(image), *CANVAS)
    np.testing.assert_allclose(placed.image, 127.5, atol=1)


@pytest.mark.parametrize("encode", [jpeg, png])
def test_an_image_stretched_to_the_canvas_fills_it(encode):
    height, width = 120, 300
    image = np.zeros((height, width, 3), np.uint8)
    image[60:, :100] = (255, 0, 0)
    placed = decode_to_canvas(tf.constant(encode(image)), 240, 200, resize=stretch)
    np.testing.assert_allclose(placed.scale, [2, 2 / 3])
    np.testing.assert_array_equal(placed.original_size, [height, width])
    box, count = extent_of_red(placed.image.numpy())
    np.testing.assert_allclose(box, [120, 0, 240, 100 * 2 / 3], atol=1.5)
    assert count == pytest.approx(120 * 100 * 2 / 3, rel=0.02)


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((480, 640), (60, 80)),  # the shorter side is 60
        ((640, 480), (80, 60)),
        ((480, 1200), (40, 100)),  # the longer side is no more than 100
        ((30, 40), (60, 80)),  # small ones grow
        ((480, 480), (60, 60)),
        ((480, 637), (60, 79)),  # 79.6
        ((427, 640), (60, 89)),  # 89.9, and 60 in spite of 427 * (60 / 427)
    ],
)
def test_the_shorter_side_is_given_and_the_longer_one_limited(size, resized):
    resize = partial(fit_short_side, short_side=60, long_side=100)
    image = np.full((*size, 3), 255, np.uint8)
    placed = resize_to_canvas(tf.constant(image), 128, 128, resize)
    seen = placed.image.numpy().all(axis=-1)
    assert (seen.any(axis=1).sum(), seen.any(axis=0).sum()) == resized
    # A canvas that is too small limits it, too.
    placed = resize_to_canvas(tf.constant(image), 30, 30, resize)
    assert max(np.multiply(size, placed.scale.numpy())) == pytest.approx(30)
