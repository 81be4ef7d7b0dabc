"""Images that no writer of tpudet has checked are refused by their size before decoding."""

import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images import decoding, pixel_limit
from tpudet.trainkit.images.canvas import decode_to_canvas
from tpudet.trainkit.images.crops import center_crop, decode_crop
from tpudet.trainkit.images.decoding import decode_whole
from tpudet.trainkit.input_errors import input_errors_in_words

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)  # 2400 pixels


def encode(extension: str) -> bytes:
    return cv2.imencode(extension, IMAGE[..., ::-1])[1].tobytes()


def png_header(width: int, height: int) -> bytes:
    content = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checked = struct.pack(">I", 13) + content + struct.pack(">I", zlib.crc32(content))
    return b"\x89PNG\r\n\x1a\n" + checked


def jpeg_header(width: int, height: int, scans: int = 1) -> bytes:
    """A progressive JPEG without pixels: all of it is kept in memory before any is decoded."""
    frame = struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\x01\x01\x00\x00\x00\x00"
    return b"\xff\xd8\xff\xc2" + struct.pack(">H", 2 + len(frame)) + frame + scan * scans


def to_canvas(encoded: tf.Tensor) -> tf.Tensor:
    return decode_to_canvas(encoded, 40, 60).image


def to_crop(encoded: tf.Tensor) -> tf.Tensor:
    return decode_crop(encoded, lambda size: center_crop(size, 1.0, aspect=1.5), 40, 60)


@pytest.mark.parametrize("decode", [to_canvas, to_crop])
def test_a_png_of_one_pixel_more_than_the_limit(
    decode: Callable[[tf.Tensor], tf.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = tf.data.Dataset.from_tensors(encode(".png"))
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 2400)
    np.testing.assert_array_equal(encoded.map(decode).get_single_element(), IMAGE)
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 2399)
    images = encoded.map(decode)
    wrong = r"A PNG of more than 2,399 pixels; width, height:\] \[\[60 40\]\]"
    with pytest.raises(UserError, match=wrong), input_errors_in_words(list):
        images.get_single_element()


@pytest.mark.parametrize("sides", [(2**16, 2**16), (2**31 - 1, 2**31 - 1), (1, 2**27 + 1)])
def test_sides_whose_product_has_more_than_32_bits(sides: tuple[int, int]) -> None:
    assert pixel_limit.MAX_PIXELS == 2**27
    with pytest.raises(tf.errors.InvalidArgumentError, match="A PNG of more than 134,217,728"):
        decode_whole(tf.constant(png_header(*sides)))


@pytest.mark.parametrize("decode", [to_canvas, to_crop, decode_whole])
@pytest.mark.parametrize(
    ("sides", "scans", "is_refused"),
    [
        ((65500, 65500), 1, True),  # of 40 bytes, 26 GB as libjpeg keeps it
        ((2**13, 2**14 + 1), 1, True),
        ((2**13, 2**14), 32, False),
        ((2**13, 2**14), 33_000, True),
        ((2**11, 2**11), 50_000, True),
        ((640, 480), 10_000, False),
    ],
)
def test_jpegs_of_too_many_pixels_or_scans(
    sides: tuple[int, int],
    scans: int,
    is_refused: bool,
    decode: Callable[[tf.Tensor], tf.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not refused comes to the decoder, which finds no pixels."""
    for name in ("decode_image", "decode_and_crop_jpeg"):
        monkeypatch.setattr(tf.io, name, lambda *_, **__: tf.zeros([1, 1, 3], tf.uint8))
    encoded = tf.constant(jpeg_header(*sides, scans))
    if is_refused:
        with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels or scans"):
            decode(encoded)
    else:
        decode(encoded)


@pytest.mark.parametrize(("count", "size", "is_refused"), [(32, 7700, False), (33, 7500, True)])
def test_compressed_texts_of_a_png_are_counted(count: int, size: int, is_refused: bool) -> None:
    """libpng keeps 8 MB of each at most: a PNG of 3 MB took 2.8 GB."""
    text = struct.pack(">I", size) + b"zTXt" + b"a\0\0".ljust(size, b"a")
    text += struct.pack(">I", zlib.crc32(text[4:]))
    whole = encode(".png")
    encoded = tf.constant(whole[:33] + text * count + whole[33:])
    if is_refused:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"many text chunks.* \[?{count}\]?"
        ):
            decode_whole(encoded)
    else:
        np.testing.assert_array_equal(decode_whole(encoded), IMAGE)


def test_gifs_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow decodes all frames and keeps the first."""
    encoded = encode(".gif")
    whole = decode_whole(tf.constant(encoded))
    assert whole.shape == (40, 60, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="A GIF of more bytes"):
        decode_whole(tf.constant(encoded.ljust(2**18 + 1, b"\0")))
    np.testing.assert_array_equal(decode_whole(tf.constant(encoded.ljust(2**18, b"\0"))), whole)
    monkeypatch.setattr(pixel_limit, "MAX_GIF_PIXELS", 2399)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"A GIF of more than 2,399.*40 60"):
        decode_whole(tf.constant(encoded))


@pytest.mark.parametrize("decode", [to_canvas, to_crop])
def test_large_images_are_reduced_to_the_same_pixels(
    decode: Callable[[tf.Tensor], tf.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (80, 120, 3), np.uint8)
    encoded = tf.constant(cv2.imencode(".png", image)[1].tobytes())
    widened = decode(encoded).numpy().astype(int)
    monkeypatch.setattr(decoding, "_WIDENED", image.size - 1)
    assert np.abs(decode(encoded).numpy() - widened).max() <= 1  # of rounding


def test_what_is_no_whole_png_reaches_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 0)
    assert decode_whole(tf.constant(encode(".bmp"))).shape == (40, 60, 3)
    for size in range(24):  # the sides are missing
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            decode_whole(tf.constant(png_header(60, 40)[:size]))
        assert "A PNG of more" not in caught.value.message
