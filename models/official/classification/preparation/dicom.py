"""Reads the slices of DICOM files as stored values, for windows that are applied when training.

Needs pydicom, and pylibjpeg for compressed files: the extra [dicom].
"""

import io
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np

from tpudet.classification.data.record import CT_BIAS
from tpudet.classification.preparation.dicom_limits import check_decoded_size, check_inflated_size
from tpudet.trainkit.errors import UserError
from tpudet.trainkit.images.headers import ImageError
from tpudet.trainkit.images.opencv_decode import decode_image

# Of 12-bit files whose negative values were written as unsigned ones: how many values there are,
# and the lowest, air, from which they count, as all repairs of RSNA's files have it.
_WRAPPED_VALUES, _LOWEST = 4096, -1000
# Files of unsigned values with an intercept below it have no negative ones to wrap around.
_LOWEST_WRAPPED_INTERCEPT = -100.0


class DicomError(UserError):
    """A file is not a DICOM image, or cannot be decoded."""


class Slice(NamedTuple):
    """One image; a pixel is `(value - CT_BIAS) * slope + intercept` Hounsfield units."""

    png: bytes  # 16-bit gray
    height: int
    width: int
    slope: float
    intercept: float


class Scan(NamedTuple):
    """The contents of a DICOM file."""

    patient: str  # id; empty if it has none
    slices: list[Slice]  # one, or those of a multi-frame file
    repairs: tuple[str, ...]  # what was changed


def read_patient(content: bytes) -> str:
    """Returns the patient's id from the header of a DICOM file; empty if it has none.

    Raises:
        DicomError: it is not a DICOM file, or its header cannot be used.
    """
    return _evaluate(_patient, _read(content, stop_before_pixels=True))


def read_scan(content: bytes) -> Scan:
    """Decodes all slices of a DICOM file.

    Pixels that are padding get the lowest other value, so that no window makes them bright.
    Negative values that were written as unsigned 12-bit ones are put right.

    Raises:
        DicomError: it is not a DICOM image of one channel, cannot be decoded, would take more than
            `dicom_limits.MAX_BYTES`, or has a header that cannot be used; says why.
    """
    dataset = _read(content, stop_before_pixels=False)
    try:
        with warnings.catch_warnings():  # of headers that do not fit the data, which then counts
            warnings.simplefilter("ignore")
            check_decoded_size(dataset)
            pixels = np.asarray(dataset.pixel_array)
    except ImageError as error:
        raise DicomError(str(error)) from error
    except Exception as error:  # whatever decoders of foreign files raise
        raise DicomError(f"cannot be decoded: {' '.join(str(error).split())}") from error
    return _evaluate(partial(_scan, pixels), dataset)


Found = TypeVar("Found")


def _evaluate(function: Callable[[Any], Found], dataset: Any) -> Found:
    """Calls a function that reads elements of a header, whose values pydicom parses only then.

    Raises:
        DicomError: as `function`, or a value cannot be parsed or used.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(dataset)
    except DicomError:
        raise
    except Exception as error:  # whatever values of foreign headers lead to
        reason = " ".join(str(error).split())
        raise DicomError(f"has a header that cannot be used: {reason}") from error


def _scan(pixels: np.ndarray, dataset: Any) -> Scan:
    frames = pixels if int(dataset.get("NumberOfFrames", 1) or 1) > 1 else pixels[None]
    if frames.ndim != 3 or frames.dtype.kind not in "iu" or frames.dtype.itemsize > 2:
        raise DicomError(f"has pixels {frames.shape[1:]} {frames.dtype}: one 16-bit value expected")
    is_padding = _find_padding(frames, dataset)
    repairs = ()
    if _is_wrapped(frames, dataset):
        frames = (frames.astype(np.int32) - _LOWEST) % _WRAPPED_VALUES + _LOWEST
        repairs = ("12-bit values that had wrapped around put right",)
    if is_padding.any() and not is_padding.all():
        frames = np.where(is_padding, frames[~is_padding].min(), frames)
    slices = [_slice(frame, *_rescale(dataset, number)) for number, frame in enumerate(frames)]
    return Scan(_patient(dataset), slices, repairs)


def _patient(dataset: Any) -> str:
    return str(dataset.get("PatientID", "") or "")


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
            check_inflated_size(content)
            return pydicom.dcmread(io.BytesIO(content), stop_before_pixels=stop_before_pixels)
    except ImageError as error:
        raise DicomError(str(error)) from error
    except Exception as error:
        raise DicomError(f"is not a DICOM file: {' '.join(str(error).split())}") from error


def _find_padding(frames: np.ndarray, dataset: Any) -> np.ndarray:
    """Returns which pixels are padding, [n, h, w] bool."""
    padding = dataset.get("PixelPaddingValue")
    if padding is None:
        return np.zeros(frames.shape, bool)
    # Some files give the value as an unsigned number where pixels are signed.
    value = np.array(int(padding) & 0xFFFF, np.uint16).view(
        np.int16 if frames.dtype.kind == "i" else np.uint16
    )
    return frames == value


def _is_wrapped(frames: np.ndarray, dataset: Any) -> bool:
    """Whether 12-bit values stand for negative ones, as air does in some of RSNA's files."""
    return (
        frames.dtype.kind == "u"
        and dataset.get("BitsStored") == 12
        and _rescale(dataset, 0)[1] > _LOWEST_WRAPPED_INTERCEPT
        and int(frames.max()) - _LOWEST >= _WRAPPED_VALUES
    )


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
            values = float(1 if slope is None else slope), float(intercept or 0)
            if not np.isfinite(values).all():
                raise DicomError(f"has a slope and an intercept that are not finite: {values}")
            return values
    return 1.0, 0.0


def _slice(frame: np.ndarray, slope: float, intercept: float) -> Slice:
    values = frame.astype(np.int32)
    if values.max() < CT_BIAS:
        values += CT_BIAS
    else:  # 16 unsigned bits leave no room for the bias; the intercept then has it
        intercept += CT_BIAS * slope
    _, png = cv2.imencode(".png", values.astype(np.uint16))
    height, width = values.shape
    return Slice(png.tobytes(), height, width, slope, intercept)


def hounsfield(found: Slice) -> np.ndarray:
    """Returns the Hounsfield units of a slice, [h, w] float64."""
    values = decode_image(found.png, cv2.IMREAD_UNCHANGED)
    return (values.astype(np.float64) - CT_BIAS) * found.slope + found.intercept


def frame_names(filename: str, count: int) -> Iterator[str]:
    """Yields a name for each frame of a file: its own if it has one, else with `#1`, `#2`, ...."""
    for number in range(count):
        yield filename if count == 1 else f"{filename}#{number + 1}"
