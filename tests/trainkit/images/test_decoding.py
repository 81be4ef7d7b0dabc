"""Images that no writer of tpudet has checked are refused by their size before decoding."""

import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
import tensorflow as tf

from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images import pixel_limit
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
    wrong = r"A PNG of more than 2,399 pixels; width, height:\] \[60 40\]"
    with pytest.raises(UserError, match=wrong), input_errors_in_words(list):
        images.get_single_element()


@pytest.mark.parametrize("sides", [(2**16, 2**16), (2**31 - 1, 2**31 - 1), (1, 2**27 + 1)])
def test_sides_whose_product_has_more_than_32_bits(sides: tuple[int, int]) -> None:
    assert pixel_limit.MAX_PIXELS == 2**27
    with pytest.raises(tf.errors.InvalidArgumentError, match="A PNG of more than 134,217,728"):
        decode_whole(tf.constant(png_header(*sides)))


def test_what_is_no_whole_png_reaches_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 0)
    for extension in (".bmp", ".gif"):
        assert decode_whole(tf.constant(encode(extension))).shape == (40, 60, 3)
    for size in range(24):  # the sides are missing
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            decode_whole(tf.constant(png_header(60, 40)[:size]))
        assert "A PNG of more" not in caught.value.message
