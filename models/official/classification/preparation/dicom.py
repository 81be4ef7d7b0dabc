"""Reads the slices of DICOM files as stored values, for windows that are applied when training.

Needs pydicom, and pylibjpeg for compressed files: the extra [dicom].
"""

import io
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np

from tpudet.trainkit.errors import UserError

# Added to stored values, so that signed ones fit into a 16-bit PNG.
BIAS = 32768


class DicomError(UserError):
    """A file is not a DICOM image, or cannot be decoded."""


class Slice(NamedTuple):
    """One image; a pixel is `(value - BIAS) * slope + intercept` Hounsfield units."""

    png: bytes  # 16-bit gray
    height: int
    width: int
    slope: float
    intercept: float


def read_patient(content: bytes) -> str:
    """Returns the patient's id from the header of a DICOM file; empty if it has none.

    Raises:
        DicomError: it is not a DICOM file.
    """
    dataset = _read(content, stop_before_pixels=True)
    return str(dataset.get("PatientID", "") or "")


def read_slices(content: bytes) -> list[Slice]:
    """Decodes all slices of a DICOM file: one, or those of a multi-frame file.

    Pixels that are padding get the lowest other value, so that no window makes them bright.

    Raises:
        DicomError: it is not a DICOM image of one channel, or cannot be decoded; says why.
    """
    dataset = _read(content, stop_before_pixels=False)
    try:
        with warnings.catch_warnings():  # of headers that do not fit the data, which then counts
            warnings.simplefilter("ignore")
            pixels = np.asarray(dataset.pixel_array)
    except Exception as error:  # whatever decoders of foreign files raise
        raise DicomError(f"cannot be decoded: {' '.join(str(error).split())}") from error
    frames = pixels if int(dataset.get("NumberOfFrames", 1) or 1) > 1 else pixels[None]
    if frames.ndim != 3 or frames.dtype.kind not in "iu" or frames.dtype.itemsize > 2:
        raise DicomError(f"has pixels {frames.shape[1:]} {frames.dtype}: one 16-bit value expected")
    frames = _without_padding(frames, dataset)
    return [_slice(frame, *_rescale(dataset, number)) for number, frame in enumerate(frames)]


def _read(content: bytes, *, stop_before_pixels: bool) -> Any:
    try:
        import pydicom
    except ModuleNotFoundError:
        raise UserError(
            "DICOM files need pydicom: pip install 'tpudet[dicom]' (with decoders for JPEG 2000 "
            "and JPEG lossless)"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pydicom.dcmread(io.BytesIO(content), stop_before_pixels=stop_before_pixels)
    except Exception as error:
        raise DicomError(f"is not a DICOM file: {' '.join(str(error).split())}") from error


def _without_padding(frames: np.ndarray, dataset: Any) -> np.ndarray:
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return frames
    # Some files give the value as an unsigned number where pixels are signed.
    value = np.array(int(padding) & 0xFFFF, np.uint16).view(
        np.int16 if frames.dtype.kind == "i" else np.uint16
    )
    is_padding = frames == value
    if not is_padding.any() or is_padding.all():
        return frames
    return np.where(is_padding, frames[~is_padding].min(), frames)


def _rescale(dataset: Any, frame: int) -> tuple[float, float]:
    """Returns slope and intercept: of the file, or of a frame of an enhanced one; else 1 and 0."""
    groups = [dataset]
    for name, index in (
        ("PerFrameFunctionalGroupsSequence", frame),
        ("SharedFunctionalGroupsSequence", 0),
    ):
        sequence = dataset.get(name) or []
        if index < len(sequence):
            groups += list(sequence[index].get("PixelValueTransformationSequence") or [])
    for group in groups:
        slope, intercept = group.get("RescaleSlope"), group.get("RescaleIntercept")
        if slope is not None or intercept is not None:
            return float(1 if slope is None else slope), float(intercept or 0)
    return 1.0, 0.0


def _slice(frame: np.ndarray, slope: float, intercept: float) -> Slice:
    values = (frame.astype(np.int32) + BIAS).clip(0, 65535).astype(np.uint16)
    _, png = cv2.imencode(".png", values)
    height, width = values.shape
    return Slice(png.tobytes(), height, width, slope, intercept)


def hounsfield(found: Slice) -> np.ndarray:
    """Returns the Hounsfield units of a slice, [h, w] float64."""
    values: Any = cv2.imdecode(np.frombuffer(found.png, np.uint8), cv2.IMREAD_UNCHANGED)
    return (values.astype(np.float64) - BIAS) * found.slope + found.intercept


def frame_names(filename: str, count: int) -> Iterator[str]:
    """Yields a name for each frame of a file: its own if it has one, else with `#1`, `#2`, ...."""
    for number in range(count):
        yield filename if count == 1 else f"{filename}#{number + 1}"
