"""Images that claim too many pixels are refused before anything is decoded."""

import contextlib
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.standardize import decode_rgb, standardize

SIZE = (40, 60)  # height, width
EXTENSIONS = (".jpg", ".png", ".webp", ".bmp", ".gif", ".tif", ".avif", ".jp2", ".ppm", ".pam")
EXTENSIONS += (".pfm", ".hdr", ".sr")


def encode(extension: str, *options: int) -> bytes:
    image: np.ndarray = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    if extension in (".pfm", ".hdr"):
        image = image.astype(np.float32)
    done, encoded = cv2.imencode(extension, image, options)
    if not done:
        pytest.skip(f"this OpenCV does not write {extension}")
    return encoded.tobytes()


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("limit", [SIZE[0] * SIZE[1], SIZE[0] * SIZE[1] - 1])
def test_the_size_in_every_header_counts(
    extension: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = encode(extension)
    share = {".jp2": 2, ".avif": 2, ".gif": 3}.get(extension, 1)  # by the decoders' memory
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", share * limit)
    if limit == SIZE[0] * SIZE[1]:
        assert decode_rgb(encoded).shape == (*SIZE, 3)
        return
    for read in (decode_rgb, standardize):
        with pytest.raises(ImageError, match="60 x 40 pixels are too many: at most 2,399 are"):
            read(encoded)


def test_a_lossless_webp(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(".webp", cv2.IMWRITE_WEBP_QUALITY, 101)
    assert b"VP8L" in encoded[:64]
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 10)
    with pytest.raises(ImageError, match="60 x 40 pixels are too many"):
        decode_rgb(encoded)


@pytest.mark.parametrize("extension", EXTENSIONS[2:])
def test_a_header_cut_anywhere_is_an_image_error_or_none(extension: str) -> None:
    encoded = encode(extension)
    for length in range(1, 64):
        with contextlib.suppress(ImageError):
            pixel_limit.check_header(encoded[:length])


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def big_tiff(order: str, height: int, width: int) -> bytes:
    """The header and the directory of a BigTIFF, with LONG8 sizes."""
    start = {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HHHQ", 43, 8, 0, 16)
    entries = [
        struct.pack(order + "HHQQ", tag, 16, 1, side) for tag, side in ((256, width), (257, height))
    ]
    return start + struct.pack(order + "Q", 2) + b"".join(entries) + bytes(8)


BOMBS = {
    "a.pgm": b"P5 40000 40000 255 ",
    "comment.ppm": b"P6\n#" + b"x" * 100_000 + b"\n40000 # and\r40000\n255\n",
    "digits.pbm": b"P4 " + b"9" * 5000 + b" 1 ",
    "a.pam": b"P7\nDEPTH 3\nWIDTH 40000\nMAXVAL 255\nHEIGHT 40000\nTUPLTYPE RGB\nENDHDR\n",
    "a.pfm": b"PF\n40000 40000\n-1.0\n",
    "a.hdr": b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y 40000 +X 40000\n",
    "a.sr": b"\x59\xa6\x6a\x95" + struct.pack(">7I", 40_000, 40_000, 24, 0, 1, 0, 0),
    "little.tif": big_tiff("<", 40_000, 40_000),
    "big.tif": big_tiff(">", 40_000, 40_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_short_file_of_a_rare_format_that_stands_for_gigabytes(name: str) -> None:
    with pytest.raises(ImageError, match=r"(40000 x 40000|999999999999 x 1) pixels are too many"):
        standardize(BOMBS[name])


def tiff_entry(encoded: bytearray, tag: int) -> int:
    """The index of a tag's entry in the only directory of a little-endian TIFF."""
    (directory,) = struct.unpack_from("<I", encoded, 4)
    (count,) = struct.unpack_from("<H", encoded, directory)
    places = range(directory + 2, directory + 2 + 12 * count, 12)
    return next(i for i in places if struct.unpack_from("<H", encoded, i) == (tag,))


@pytest.mark.parametrize("kind", [1, 6, 3, 8, 4, 9])
def test_every_integer_type_of_a_tiff_that_libtiff_takes(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BYTE, SBYTE, SHORT, SSHORT, LONG and SLONG."""
    encoded = bytearray(encode(".tif"))
    for tag, side in ((256, SIZE[1]), (257, SIZE[0])):
        struct.pack_into("<HII", encoded, tiff_entry(encoded, tag) + 2, kind, 1, side)
    assert decode_rgb(bytes(encoded)).shape == (*SIZE, 3)
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 2399)
    with pytest.raises(ImageError, match="60 x 40 pixels are too many"):
        decode_rgb(bytes(encoded))


def little_tiff(*entries: tuple[int, int, int]) -> bytes:
    """A header and a directory of tag, type and value."""
    packed = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + bytes(4)


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def code_stream(side: int) -> bytes:
    """The first markers of a JPEG 2000 image of three components."""
    sizes = struct.pack(">8I", side, side, 0, 0, side, side, 0, 0)
    return b"\xff\x4f\xff\x51\0\x2f\0\0" + sizes + b"\0\x03" + b"\x07\x01\x01" * 3


JP2_START = box(b"jP  ", b"\r\n\x87\n") + box(b"ftyp", b"jp2 \0\0\0\0jp2 ")
TOO_MANY = "30000 x 30000 pixels are too many"
# Files whose header can be read in two ways, and files that hide their size.
TWO_WAYS = {
    "two widths": (little_tiff((256, 4, 30_000), (257, 4, 30_000), (256, 4, 8)), "a broken TIFF"),
    "width of a rational": (little_tiff((256, 5, 30_000), (257, 4, 8)), "a broken TIFF"),
    "no width": (little_tiff((257, 4, 8)), "a broken TIFF"),
    "large tiles": (
        little_tiff((256, 4, 8), (257, 4, 8), (322, 4, 30_000), (323, 4, 30_000)),
        TOO_MANY,
    ),
    "decoy": (
        JP2_START + box(b"free", code_stream(8)) + box(b"jp2c", code_stream(30_000)),
        TOO_MANY,
    ),
    "no code stream": (JP2_START + box(b"free", code_stream(8)), "a broken JPEG 2000"),
    "sign": (b"#?RADIANCE\nFORMAT=32-bit_rle_rgbe\n\n-Y+30000+X +30000\n", TOO_MANY),
    "another order": (b"#?RADIANCE\n\n+X 30000 -Y 30000\n", "in no known image format"),
    "two headers": (
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
            for side in (30_000, 8)
        )
        + chunk(b"IEND", b""),
        "two header chunks",
    ),
}


@pytest.mark.parametrize("name", TWO_WAYS)
def test_a_header_with_two_meanings_is_refused_before_decoding(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, reason = TWO_WAYS[name]
    for function in ("imdecode", "imdecodeWithMetadata"):
        monkeypatch.setattr(cv2, function, lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(ImageError, match=reason):
        standardize(encoded)


def test_memory_of_jpeg_2000_counts_by_its_components() -> None:
    """OpenJPEG takes 4 bytes a sample: 67 megapixels of three fill 0.8 GB, of one 134 0.5 GB."""
    assert pixel_limit.MAX_PIXELS == 2**27
    pixel_limit.check_header(code_stream(2**13))
    with pytest.raises(ImageError, match="8193 x 8193 pixels are too many: at most 67,108,864 are"):
        pixel_limit.check_header(code_stream(2**13 + 1))
    gray = code_stream(11_585).replace(b"\0\x03\x07", b"\0\x01\x07")
    pixel_limit.check_header(gray)


def test_an_avif_whose_first_brand_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(".avif")
    (size,) = struct.unpack_from(">I", encoded)
    assert b"avif" in encoded[16:size]
    encoded = encoded[:8] + b"mif1" + encoded[12:]
    assert standardize(encoded).repairs == ("AVIF converted",)
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 4799)
    with pytest.raises(ImageError, match="60 x 40 pixels are too many: at most 2,399 are"):
        standardize(encoded)


@pytest.mark.parametrize("extension", [".png", ".webp"])
def test_an_animation_may_have_half_the_pixels(
    extension: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    animation = cv2.Animation()
    animation.frames = [np.full((*SIZE, 4), value, np.uint8) for value in (0, 200)]
    animation.durations = [100, 100]
    encoded = cv2.imencodeanimation(extension, animation)[1].tobytes()
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 4800)
    assert "first frame of an animation" in standardize(encoded).repairs
    monkeypatch.setattr(pixel_limit, "MAX_PIXELS", 4799)
    with pytest.raises(ImageError, match="60 x 40 pixels are too many: at most 2,399 are"):
        standardize(encoded)


def test_bombs_of_rare_formats_take_neither_memory_nor_time(
    tmp_path: Path, run_limited: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Also those that claim as much as is allowed, and hold nothing."""
    most = {f"most_{name}": bomb.replace(b"40000", b"11585") for name, bomb in BOMBS.items()}
    for name, bomb in (BOMBS | most).items():
        (tmp_path / name).write_bytes(bomb)
    program = """
import sys
from tpudet.trainkit.images.standardize import ImageError, standardize
for path in sys.argv[1:]:
    try:
        standardize(open(path, "rb").read())
    except ImageError:
        continue
"""
    paths = map(str, sorted(tmp_path.iterdir()))
    done = run_limited("-c", program, *paths)
    assert done.returncode == 0, done.stderr


def test_a_bomb_takes_neither_memory_nor_time(
    tmp_path: Path, run_limited: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A PNG of 32,000 x 32,000 pixels in 1 MB, under a limit of 1 GB."""
    rows = zlib.compressobj(9)
    row = bytes(1 + 32_000)
    packed = b"".join(rows.compress(row * 100) for _ in range(320)) + rows.flush()
    header = struct.pack(">IIBBBBB", 32_000, 32_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed)
    (tmp_path / "bomb.png").write_bytes(bomb + chunk(b"IEND", b""))
    program = """
import sys
from tpudet.trainkit.images.standardize import standardize
try:
    standardize(open(sys.argv[1], "rb").read())
except ValueError as error:
    print(error)
"""
    done = run_limited("-c", program, str(tmp_path / "bomb.png"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("32000 x 32000 pixels are too many")
