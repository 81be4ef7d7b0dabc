"""DICOM files with chosen pixels and headers."""

import io
from collections.abc import Callable

import numpy as np
import pytest

CT_IMAGE, EXPLICIT_LITTLE_ENDIAN = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.1.2.1"
MakeDicom = Callable[..., bytes]


@pytest.fixture(scope="session")
def make_dicom() -> MakeDicom:
    """From pixels [h, w], 16 bits, to a file; `before_patient` bytes come before its patient."""
    pydicom = pytest.importorskip("pydicom")

    def make(pixels: np.ndarray, *, before_patient: int = 0, **elements: object) -> bytes:
        meta = pydicom.dataset.FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CT_IMAGE, "1.2.3"
        meta.TransferSyntaxUID = EXPLICIT_LITTLE_ENDIAN
        file = pydicom.dataset.FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
        described = {
            "Rows": pixels.shape[0],
            "Columns": pixels.shape[1],
            "BitsAllocated": 16,
            "BitsStored": 16,
            "PixelRepresentation": int(pixels.dtype.kind == "i"),
            "SamplesPerPixel": 1,
            "PhotometricInterpretation": "MONOCHROME2",
            "RescaleSlope": 1,
            "RescaleIntercept": -1024,
            **elements,
        }
        for name, value in described.items():
            setattr(file, name, value)
        file.HighBit = file.BitsStored - 1
        file.PixelData = pixels.tobytes()
        if before_patient:
            file.add_new((0x0009, 0x1010), "OB", b"\0" * before_patient)
        buffer = io.BytesIO()
        pydicom.dcmwrite(buffer, file, enforce_file_format=True)
        return buffer.getvalue()

    return make
