"""AVIF: the size in its boxes and that of its AV1 data, which is the one that takes memory."""

import io
import struct

import cv2
import numpy as np
import pytest
from PIL import Image, features

from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.images.avif_sizes import avif_sizes, sequence_sizes
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.standardize import standardize


def pixels(height: int, width: int, channels: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize("size", [(40, 60), (123, 457), (33, 1001), (8, 8)])
@pytest.mark.parametrize("channels", [3, 4])
def test_av1_data_have_the_size_that_the_boxes_say(size: tuple[int, int], channels: int) -> None:
    """Written by libavif: stills by OpenCV, sequences, with their longer headers, by Pillow."""
    image = pixels(*size, channels)
    done, still = cv2.imencode(".avif", image)
    if not done:
        pytest.skip("this OpenCV does not write AVIF")
    assert set(avif_sizes(still.tobytes())) == {size}
    if not features.check("avif"):
        pytest.skip("this Pillow does not write AVIF")
    file = io.BytesIO()
    frames = [Image.fromarray(image), Image.fromarray(255 - image)]
    frames[0].save(file, "AVIF", save_all=True, append_images=frames[1:])
    assert b"stco" in file.getvalue()
    assert set(avif_sizes(file.getvalue())) == {size}


def test_av1_data_larger_than_their_box_says_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """libavif would decode 60 x 40 pixels, and scale them down."""
    done, written = cv2.imencode(".avif", pixels(40, 60, 3))
    if not done:
        pytest.skip("this OpenCV does not write AVIF")
    encoded = bytearray(written.tobytes())
    struct.pack_into(">II", encoded, encoded.index(b"ispe") + 8, 8, 8)
    assert standardize(bytes(encoded))[2:4] == (8, 8)
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 4799)
    with pytest.raises(ImageError, match="60 x 40 pixels are too many: at most 2,399 are"):
        standardize(bytes(encoded))


def obu(payload: str) -> bytes:
    """A sequence header of these bits."""
    bits = payload.replace(" ", "")
    content = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([0x0A, len(content)]) + content


@pytest.mark.parametrize(
    "before",
    [
        "000 1 1 00000",
        # Timing with equal intervals and a decoder model of 3-bit delays, two operating points.
        f"000 0 0 1 {'0' * 64} 1 00101 1 00010 {'0' * 42} 1 00001"
        f" {'0' * 12} 01000 1 1 101 010 0 1 1111 {'0' * 12} 00001 0 0",
    ],
    ids=["reduced", "whole"],
)
def test_sequence_headers_by_the_specification(before: str) -> None:
    """Sides of 11 bits each: 1201 x 801 pixels."""
    bits = f"{before} 1010 1010 {1200:011b} {800:011b}".replace(" ", "")
    padded = bits + "1" + "0" * (-(len(bits) + 1) % 8)
    assert list(sequence_sizes(b"\x12\0" + obu(padded) + b"\x12\0")) == [(801, 1201)]


def test_locations_that_overlap_end_soon() -> None:
    """Items that each hold the whole file would be read a thousand times."""
    items = b"".join(struct.pack(">HHHII", n, 0, 1, 0, 0) for n in range(1000))
    content = bytes(4) + b"\x44\0" + struct.pack(">H", 1000) + items
    location = struct.pack(">I4s", 8 + len(content), b"iloc") + content
    meta = struct.pack(">I4sI", 12 + len(location), b"meta", 0) + location
    head = struct.pack(">I4s4sI4s", 20, b"ftyp", b"avif", 0, b"avif")
    with pytest.raises(ImageError, match="a broken AVIF"):
        pixel_limit.check_header(head + meta)
