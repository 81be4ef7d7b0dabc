"""DICOM files that would take gigabytes are refused before pydicom inflates or decodes them."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudet.classification.data.samples import decode_windows
from tpudet.classification.preparation import dicom_limits
from tpudet.classification.preparation.dicom import DicomError, read_patient, read_scan
from tpudet.trainkit.images.crops import Crop

pydicom = pytest.importorskip("pydicom")
DEFLATED, JPEG_2000, JPEG_LS = (
    pydicom.uid.DeflatedExplicitVRLittleEndian,
    pydicom.uid.JPEG2000Lossless,
    pydicom.uid.JPEGLSLossless,
)
Make = Callable[..., bytes]


def rewritten(content: bytes, syntax: str, **elements: object) -> bytes:
    """The file in another transfer syntax, with other elements."""
    dataset = pydicom.dcmread(io.BytesIO(content))
    dataset.file_meta.TransferSyntaxUID = syntax
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset["PixelData"].is_undefined_length = syntax in (JPEG_2000, JPEG_LS)
    buffer = io.BytesIO()
    pydicom.dcmwrite(buffer, dataset, enforce_file_format=True)
    return buffer.getvalue()


def code_stream(side: int) -> bytes:
    """The first markers of a JPEG 2000 image of one component."""
    sizes = struct.pack(">8I", side, side, 0, 0, side, side, 0, 0)
    return b"\xff\x4f\xff\x51\0\x29\0\0" + sizes + b"\0\x01\x0f\x01\x01"


def jpeg_ls(side: int) -> bytes:
    """The frame header of JPEG-LS, one component of 16 bits, and an empty scan."""
    frame = struct.pack(">HBHHB3B", 11, 16, side, side, 1, 1, 0x11, 0)
    return b"\xff\xd8\xff\xf7" + frame + b"\xff\xda\0\x08\x01\x01\0\0\0\0\xff\xd9"


@pytest.fixture(autouse=True)
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pydicom.dataset.Dataset, "pixel_array", property(lambda _: pytest.fail("decoded"))
    )


def test_the_pixels_that_the_header_states(make_dicom: Make) -> None:
    """2^28 bytes are decoded: 512 frames of 512 x 512."""
    content = make_dicom(np.zeros((1, 1), np.uint16), Rows=512, Columns=512, NumberOfFrames=513)
    message = "has 513 x 512 x 512 pixels of 1 x 16 bits: at most 268,435,456 bytes"
    with pytest.raises(DicomError, match=message):
        read_scan(content)


@pytest.mark.parametrize(("syntax", "frame"), [(JPEG_2000, code_stream), (JPEG_LS, jpeg_ls)])
def test_a_compressed_frame_larger_than_the_header_states(
    syntax: str, frame: Callable[[int], bytes], make_dicom: Make
) -> None:
    content = make_dicom(np.zeros((8, 8), np.uint16))
    frames = pydicom.encaps.encapsulate([frame(30_000)])
    with pytest.raises(DicomError, match="30000 x 30000 pixels are too many"):
        read_scan(rewritten(content, syntax, PixelData=frames))


def test_all_frames_count_whatever_their_number_is_said_to_be(make_dicom: Make) -> None:
    content = make_dicom(np.zeros((512, 512), np.uint16))
    frames = pydicom.encaps.encapsulate([code_stream(512)] * 513)
    with pytest.raises(DicomError, match="has 513 x 512 x 512 pixels"):
        read_scan(rewritten(content, JPEG_2000, PixelData=frames))


def test_a_deflated_file_is_not_inflated_beyond_the_limit(
    make_dicom: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = rewritten(make_dicom(np.zeros((1024, 1024), np.uint16), PatientID="p"), DEFLATED)
    assert len(content) < 5000
    assert read_patient(content) == "p"
    monkeypatch.setattr(dicom_limits, "MAX_BYTES", 2**20)
    monkeypatch.setattr(dicom_limits, "_MAX_HEADER", 2**10)
    inflate = zlib.decompress
    monkeypatch.setattr(zlib, "decompress", lambda *_: pytest.fail("inflated"))
    for read in (read_patient, read_scan):
        with pytest.raises(DicomError, match="inflates to more than 1,049,600 bytes"):
            read(content)
    monkeypatch.setattr(zlib, "decompress", inflate)
    monkeypatch.setattr(dicom_limits, "MAX_BYTES", 2**21)
    assert read_patient(content) == "p"


def test_a_slice_of_more_pixels_than_are_trained_on(make_dicom: Make) -> None:
    """2^25 of them are: 4096 x 8192."""
    content = make_dicom(np.zeros((1, 1), np.uint16), Rows=4096, Columns=8192)
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        read_scan(content)
    content = make_dicom(np.zeros((1, 1), np.uint16), Rows=4097, Columns=8192)
    with pytest.raises(DicomError, match="has 4097 x 8192 pixels: at most 33,554,432"):
        read_scan(content)


@pytest.mark.parametrize(("width", "is_refused"), [(8192, False), (8193, True)])
def test_records_of_others_with_such_a_slice(
    width: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PNG of 1 MB took 4 GB; what is not refused comes to the decoder."""
    decoded: list[int] = []

    def decode_png(*_: Any, **__: Any) -> tf.Tensor:
        decoded.append(width)
        return tf.zeros([4, 4, 1], tf.uint16)

    monkeypatch.setattr(tf.io, "decode_png", decode_png)
    header = struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, 4096, 16, 0, 0, 0, 0)
    encoded, crop = tf.constant(b"\x89PNG\r\n\x1a\n" + header), Crop(*tf.constant([[0, 0], [4, 4]]))

    def decode() -> None:
        windows = [(40, 80)] * 3
        decode_windows(encoded, tf.constant([1.0, 0.0]), lambda _: crop, 4, 4, windows=windows)

    if is_refused:
        with pytest.raises(tf.errors.InvalidArgumentError, match="A CT slice of more than"):
            decode()
    else:
        decode()
    assert decoded == ([] if is_refused else [width])
