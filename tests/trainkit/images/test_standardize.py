"""Images against Pillow as the second implementation, and against TensorFlow's own decoder."""

import io
import struct
import zlib
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from tpudet.trainkit.images.standardize import ImageError, decode_rgb, standardize

HEIGHT, WIDTH = 48, 64


def sample_image() -> Image.Image:
    """Smooth colours (lossy coding changes them little), no symmetry."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    channels = [x * 255 // WIDTH, y * 255 // HEIGHT, (x + 2 * y) % 256]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def with_orientation(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(sample_image(), kind, exif=exif)


def by_pillow(encoded: bytes) -> np.ndarray:
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(encoded))).convert("RGB"))


def by_tensorflow(encoded: bytes, kind: str) -> np.ndarray:
    """With the inverse DCT that Pillow and OpenCV use; TensorFlow's default is a faster one."""
    if kind == "png":
        return tf.io.decode_png(encoded, channels=3).numpy()
    return tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE").numpy()


def mean_difference(first: np.ndarray, second: np.ndarray) -> float:
    assert first.shape == second.shape
    return float(np.abs(first.astype(int) - second.astype(int)).mean())


GRAY_16 = Image.fromarray(np.asarray(sample_image().convert("L")).astype(np.uint16) * 257)
KINDS = {
    "rgb jpeg": (encode(sample_image(), "JPEG", quality=95), True),
    "progressive jpeg": (encode(sample_image(), "JPEG", progressive=True), True),
    "gray jpeg": (encode(sample_image().convert("L"), "JPEG"), True),
    "cmyk jpeg": (encode(sample_image().convert("CMYK"), "JPEG", quality=100), False),
    "rgb png": (encode(sample_image(), "PNG"), True),
    "gray png": (encode(sample_image().convert("L"), "PNG"), True),
    "palette png": (encode(sample_image().quantize(64), "PNG"), False),
    "rgba png": (encode(sample_image().convert("RGBA"), "PNG"), False),
    "bilevel png": (encode(sample_image().convert("1"), "PNG"), False),
    "webp": (encode(sample_image(), "WEBP"), False),
    "lossless webp": (encode(sample_image(), "WEBP", lossless=True), False),
    "gif": (encode(sample_image(), "GIF"), False),
    "bmp": (encode(sample_image(), "BMP"), False),
    "tiff": (encode(sample_image(), "TIFF"), False),
    "jpeg 2000": (encode(sample_image(), "JPEG2000"), False),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_decodes_as_pillow_does_and_tensorflow_decodes_what_is_stored(name: str) -> None:
    encoded, passes = KINDS[name]
    expected = by_pillow(encoded)
    # OpenCV multiplies CMYK out with another rounding.
    assert mean_difference(decode_rgb(encoded), expected) <= (1.0 if "cmyk" in name else 0.1)

    image = standardize(encoded)
    assert (image.encoded == encoded, image.repairs == ()) == (passes, passes)
    assert (image.height, image.width) == (HEIGHT, WIDTH)
    # Coding anew as JPEG costs a little: this chroma is subsampled.
    assert mean_difference(by_tensorflow(image.encoded, image.format), expected) < 4


def test_lossless_sources_are_stored_without_loss() -> None:
    for name in ("palette png", "rgba png", "lossless webp", "bmp", "tiff"):
        image = standardize(KINDS[name][0])
        assert image.format == "png"
        np.testing.assert_array_equal(
            by_tensorflow(image.encoded, "png"), by_pillow(KINDS[name][0])
        )


def test_a_lossless_webp_stays_lossless_behind_a_colour_profile() -> None:
    encoded = encode(sample_image(), "WEBP", lossless=True, icc_profile=bytes(200))
    assert standardize(encoded).format == "png"
    assert standardize(encode(sample_image(), "WEBP", icc_profile=bytes(200))).format == "jpeg"


@pytest.mark.parametrize("kind", ["WEBP", "GIF", "BMP", "AVIF", "PPM", "JPEG2000", "TIFF", "PNG"])
@pytest.mark.parametrize("size", [(1, 1), (200, 7), (3, 90)])
def test_images_of_a_few_pixels_are_decoded(kind: str, size: tuple[int, int]) -> None:
    image = standardize(encode(Image.new("RGB", size, (200, 100, 50)), kind, quality=100))
    assert (image.width, image.height) == size
    colour = by_tensorflow(image.encoded, image.format)[0, 0]
    np.testing.assert_allclose(colour, (200, 100, 50), atol=3)


def test_the_upper_byte_of_16_bits_is_kept() -> None:
    image = standardize(encode(GRAY_16, "PNG"))
    expected = np.repeat(np.asarray(sample_image().convert("L"))[..., None], 3, axis=-1)
    np.testing.assert_array_equal(by_tensorflow(image.encoded, image.format), expected)
    assert image.repairs == ("16-bit PNG reduced to 8 bits",)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_eight_orientations_in_five_containers(kind: str, orientation: int) -> None:
    encoded = with_orientation(kind, orientation)
    assert mean_difference(decode_rgb(encoded), by_pillow(encoded)) < 0.1

    upright = standardize(encoded)
    assert (upright.height, upright.width) == by_pillow(encoded).shape[:2]
    decoded = by_tensorflow(upright.encoded, upright.format)
    assert mean_difference(decoded, by_pillow(encoded)) < 4


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
@pytest.mark.parametrize("name", KINDS)
def test_truncated_files_are_refused(name: str, share: float) -> None:
    encoded = KINDS[name][0]
    cut = encoded[: int(len(encoded) * share)]
    for function in (decode_rgb, standardize, partial(standardize, check_pixels=False)):
        with pytest.raises(ImageError):
            function(cut)


@pytest.mark.parametrize("name", KINDS)
def test_of_sound_files_the_headers_say_as_much_as_the_pixels(name: str) -> None:
    files = [KINDS[name][0], with_orientation("JPEG", 6), with_orientation("PNG", 3)]
    for encoded in files:
        by_headers, by_pixels = (
            standardize(encoded, check_pixels=check) for check in (False, True)
        )
        assert by_headers == by_pixels


def test_headers_are_believed_only_where_they_are_whole() -> None:
    encoded = KINDS["rgb jpeg"][0]
    middle = len(encoded) * 2 // 3
    damaged = encoded[:middle] + b"\xff\xc4\xff\xff" + encoded[middle + 4 :]
    assert standardize(damaged, check_pixels=False).encoded == damaged  # what a full check is for
    with pytest.raises(ImageError, match="truncated JPEG"):
        standardize(damaged)

    for marker in (b"\xff\xdb", b"\xff\xc4"):  # quantization and Huffman tables
        stripped = without_segments(encoded, marker)
        assert len(stripped) < len(encoded)
        try:
            expected = standardize(stripped)
        except ImageError:
            with pytest.raises(ImageError):
                standardize(stripped, check_pixels=False)
        else:
            assert standardize(stripped, check_pixels=False) == expected
    frame = encoded.index(b"\xff\xc0") + 5
    for check in (True, False):
        with pytest.raises(ImageError):  # of no height
            standardize(encoded[:frame] + b"\0\0" + encoded[frame + 2 :], check_pixels=check)


def without_segments(encoded: bytes, marker: bytes) -> bytes:
    while (start := encoded.find(marker)) >= 0:
        length = int.from_bytes(encoded[start + 2 : start + 4], "big")
        encoded = encoded[:start] + encoded[start + 2 + length :]
    return encoded


@pytest.mark.parametrize("name", ["rgb jpeg", "progressive jpeg", "rgb png"])
def test_a_file_padded_to_its_full_length_with_zeros_is_truncated(name: str) -> None:
    encoded = KINDS[name][0]
    with pytest.raises(ImageError, match="truncated|corrupt"):
        standardize(encoded[: len(encoded) * 3 // 4].ljust(len(encoded), b"\0"))


@pytest.mark.parametrize("name", ["rgb jpeg", "rgb png"])
def test_trailing_bytes_do_not_matter(name: str) -> None:
    encoded = KINDS[name][0] + b"\x00\xff\xd8trailing"
    image = standardize(encoded)
    assert image.encoded == encoded
    assert mean_difference(by_tensorflow(encoded, image.format), by_pillow(encoded)) == 0


def test_the_end_marker_of_a_thumbnail_is_not_the_end_of_the_image() -> None:
    thumbnail = b"Exif\x00\x00II*\x00" + KINDS["rgb jpeg"][0]
    encoded = KINDS["rgb jpeg"][0]
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    with_thumbnail = encoded[:2] + segment + encoded[2:]
    assert standardize(with_thumbnail).encoded == with_thumbnail
    with pytest.raises(ImageError, match="end marker"):
        standardize(with_thumbnail[:-20])


def test_a_flipped_bit_in_a_png_is_found() -> None:
    encoded = bytearray(KINDS["rgb png"][0])
    encoded[len(encoded) // 2] ^= 1
    with pytest.raises(ImageError, match="checksum"):
        decode_rgb(bytes(encoded))


def test_a_png_chunk_with_transparent_colour_is_converted() -> None:
    encoded = KINDS["rgb png"][0]
    payload = b"tRNS" + struct.pack(">HHH", 0, 0, 0)
    chunk = struct.pack(">I", 6) + payload + struct.pack(">I", zlib.crc32(payload))
    image = standardize(encoded[:33] + chunk + encoded[33:])
    assert image.repairs == ("alpha channel dropped",)
    np.testing.assert_array_equal(by_tensorflow(image.encoded, "png"), np.asarray(sample_image()))


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (b"", "empty"),
        (b"<html>404</html>", "no known image format"),
        (b"\xff\xd8\xff\xd9", "no frame header"),
        (b"\xff\xd8\xff\xe0\x00\x10JF", "truncated"),
        (b"\x89PNG\r\n\x1a\n", "truncated"),
        (b"GIF89a" + b"\0" * 20, "GIF"),
    ],
)
def test_what_is_no_image_says_so(encoded: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        decode_rgb(encoded)


def test_the_real_photo_that_lies_on_its_side(data_dir) -> None:
    encoded = (data_dir / "sign_digits/images/7/IMG_5874.JPG").read_bytes()
    image = standardize(encoded)
    assert image.repairs == ("turned upright by its EXIF orientation",)
    decoded = by_tensorflow(image.encoded, image.format)
    assert mean_difference(decoded, by_pillow(encoded)) < 1.5


@pytest.mark.parametrize("kind", ["GIF", "WebP", "AVIF", "PNG", "TIFF"])
def test_of_several_images_in_a_file_the_first_is_taken_and_said(kind: str) -> None:
    first = sample_image().quantize().convert("RGB")
    others = [Image.new("RGB", first.size, colour) for colour in ("red", "blue")]
    alone, whole = encode(first, kind), encode(first, kind, save_all=True, append_images=others)
    said = "first of several pages" if kind == "TIFF" else "first frame of an animation"
    for encoded, is_said in ((alone, False), (whole, True)):
        assert (said in standardize(encoded).repairs) == is_said
        loss = 8.0 if kind in ("WebP", "AVIF") else 0.0
        assert mean_difference(decode_rgb(encoded), np.asarray(first)) <= loss
