"""Images of few pixels, or of few bytes a pass, whose decoding takes long or gigabytes."""

import io
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tpudet.trainkit.images import pixel_limit
from tpudet.trainkit.images.headers import ImageError, parse_jpeg
from tpudet.trainkit.images.png_metadata import inflates_beyond
from tpudet.trainkit.images.standardize import standardize


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def jpeg_of_scans(process: int, scans: int, *, between: bytes = b"") -> bytes:
    """A gray and square JPEG of the largest size whose scans hold nothing, which libjpeg fills."""
    side = 11_584
    frame = struct.pack(">BHHB", 8, side, side, 3) + b"\x01\x11\0\x02\x11\0\x03\x11\0"
    codes = b"\x01" + bytes(16)  # one of one bit
    tables = segment(0xDB, b"\0" + b"\x01" * 64) + segment(0xC4, b"\0" + codes + b"\x10" + codes)
    end = b"\0\0\0" if process == 2 else b"\0\x3f\0"  # the coefficients: the first or all
    scan = segment(0xDA, b"\x01\x01\0" + end) + between
    return b"\xff\xd8" + tables + segment(0xC0 + process, frame) + scan * scans + b"\xff\xd9"


@pytest.mark.parametrize(("mode", "scans"), [("RGB", 10), ("L", 6)])
def test_scans_of_progressive_jpegs(mode: str, scans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as libjpeg's own script has (jcparam.c); 60 x 40 pixels are 8 x 5 blocks."""
    stream = io.BytesIO()
    Image.new(mode, (60, 40)).save(stream, "JPEG", progressive=True)
    encoded = stream.getvalue()
    sequential = cv2.imencode(".jpg", np.zeros((40, 60), np.uint8))[1].tobytes()
    for walk_scans in (True, False):
        assert parse_jpeg(encoded, walk_scans=walk_scans).scans == scans
        assert parse_jpeg(sequential, walk_scans=walk_scans).scans == 1
    monkeypatch.setattr(pixel_limit, "MAX_SCANNED_BLOCKS", 40 * scans)
    assert standardize(encoded).encoded == encoded
    monkeypatch.setattr(pixel_limit, "MAX_SCANNED_BLOCKS", 40 * scans - 1)
    for check_pixels in (True, False):
        with pytest.raises(ImageError, match=f"{scans} scans: at most {scans - 1} of 60 x 40"):
            standardize(encoded, check_pixels=check_pixels)


@pytest.mark.parametrize("process", [0, 2])
@pytest.mark.parametrize("check_pixels", [True, False])
@pytest.mark.parametrize("between", [b"", b"\xff\x02\xff\xff"])
def test_thousands_of_scans_are_refused_before_decoding(
    process: int, check_pixels: bool, between: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a sequential JPEG, and behind reserved markers, which have no length."""
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(ImageError, match="a JPEG of 9,000 scans: at most 32 of 11584 x 11584"):
        standardize(jpeg_of_scans(process, 9000, between=between), check_pixels=check_pixels)


def test_a_scan_without_a_header_at_the_end_is_a_truncated_jpeg() -> None:
    encoded = jpeg_of_scans(2, 1)
    with pytest.raises(ImageError, match="truncated JPEG"):
        standardize(encoded[: encoded.index(b"\xff\xda")] + segment(0xDA, b""))


def png_with(kind: str, count: int, text: str) -> bytes:
    """A PNG with so many compressed copies of a text."""
    stream, metadata = io.BytesIO(), PngImagePlugin.PngInfo()
    for i in range(count):
        if kind == "zTXt":
            metadata.add_text(f"key {i}", text, zip=True)
        if kind == "iTXt":
            metadata.add_itxt(f"key {i}", text, "en", "k", zip=True)
    profile = text.encode() if kind == "iCCP" else None
    Image.new("RGB", (6, 4)).save(stream, "PNG", pnginfo=metadata, icc_profile=profile)
    assert stream.getvalue().count(kind.encode()) == count
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["zTXt", "iTXt", "iCCP"])
def test_metadata_of_png_count_by_what_they_inflate_to(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 1 if kind == "iCCP" else 3  # the specification allows one profile
    encoded = png_with(kind, count, "a" * 400_000)
    assert not inflates_beyond(encoded, 400_000 * count)
    assert inflates_beyond(encoded, 400_000 * count - 1)
    monkeypatch.setattr(pixel_limit, "_MAX_METADATA", 400_000 * count)
    assert standardize(encoded).encoded == encoded
    monkeypatch.setattr(pixel_limit, "_MAX_METADATA", 400_000 * count - 1)
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(
        ImageError, match="text chunks and colour profile inflate to more than [01] MB"
    ):
        standardize(encoded)


def test_metadata_of_png_have_a_limit_of_64_mb(
    tmp_path: Path, run_limited: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """70 KB stand for 70 MB; a broken text counts 1032-fold, an uncompressed one not at all."""
    assert pixel_limit._MAX_METADATA == 2**26
    text = chunk(b"zTXt", b"k\0\0" + zlib.compress(b"a" * 7_000_000, 9))
    image = png_with("none", 0, "")
    (tmp_path / "a.png").write_bytes(image[:33] + text * 10 + image[33:])
    broken = chunk(b"zTXt", b"k\0\0" + b"\xff" * 1000)
    assert inflates_beyond(image[:33] + broken + image[33:], 1_031_999)
    assert not inflates_beyond(image[:33] + broken + image[33:], 1_032_000)
    plain = chunk(b"iTXt", b"k\0\0\0\0\0" + b"a" * 1000)
    assert not inflates_beyond(image[:33] + plain + image[33:], 0)
    program = """
import sys
from tpudet.trainkit.images.standardize import standardize
try:
    standardize(open(sys.argv[1], "rb").read())
except ValueError as error:
    print(error)
"""
    done = run_limited("-c", program, str(tmp_path / "a.png"))
    assert "inflate to more than 64 MB: save the image without them" in done.stderr
