"""Refuses DICOM files that would take gigabytes to decode, before that is done.

As with images, a few hundred kilobytes can stand for gigabytes of pixels.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Any

from tpudet.classification.data.record import MAX_SLICE_PIXELS
from tpudet.trainkit.images.headers import ImageError, find_container
from tpudet.trainkit.images.pixel_limit import MAX_PIXELS, check_header

MAX_BYTES = 2 * MAX_PIXELS  # of all frames, 16 bits a value: 512 slices of 512 x 512
_MAX_HEADER = 2**24  # bytes beside the pixels
_STEP = 2**20  # bytes inflated at a time


def check_inflated_size(content: bytes) -> None:
    """Raises ImageError if a deflated file holds more than pixels of `MAX_BYTES` and a header.

    pydicom inflates it whole, even where only its header is wanted.
    """
    from pydicom.filereader import _read_file_meta_info, read_preamble
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    file = io.BytesIO(content)
    read_preamble(file, False)
    meta = _read_file_meta_info(file)  # no public function reads it from memory
    if meta.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    size, limit = 0, MAX_BYTES + _MAX_HEADER
    while rest := inflater.unconsumed_tail or file.read(_STEP):
        size += len(inflater.decompress(rest, _STEP))
        if size > limit:
            raise ImageError(f"inflates to more than {limit:,} bytes, the most that is read")


def check_decoded_size(dataset: Any) -> None:
    """Raises ImageError if the pixels of a file would take more than `MAX_BYTES`.

    A frame has a limit too, by the memory of training.

    The header of the file counts, and those of its compressed frames, which may be of another size.
    """
    frames = _whole_number(dataset, "NumberOfFrames", 1)
    if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        frames = max(frames, _check_frames(dataset, frames))
    rows, columns = _whole_number(dataset, "Rows", 0), _whole_number(dataset, "Columns", 0)
    if rows * columns > MAX_SLICE_PIXELS:
        raise ImageError(
            f"has {rows} x {columns} pixels: at most {MAX_SLICE_PIXELS:,} are trained on"
        )
    samples = _whole_number(dataset, "SamplesPerPixel", 1)
    bits = _whole_number(dataset, "BitsAllocated", 16)
    if frames * rows * columns * samples * bits > 8 * MAX_BYTES:
        raise ImageError(
            f"has {frames} x {rows} x {columns} pixels of {samples} x {bits} bits: at most "
            f"{MAX_BYTES:,} bytes are decoded; split it into files of fewer frames"
        )


def _check_frames(dataset: Any, frames: int) -> int:
    """Checks the compressed frames; returns how many there are, which are all decoded."""
    count = 0
    for encoded in _encoded_frames(dataset, frames):
        count += 1
        # Other codings take what the header of the file says.
        if find_container(encoded) in ("JPEG", "JPEG 2000"):
            check_header(encoded)
    return count


def _encoded_frames(dataset: Any, frames: int) -> Iterator[bytes]:
    """Yields the compressed frames as pydicom finds them."""
    from pydicom.encaps import generate_frames

    offsets = None
    if "ExtendedOffsetTable" in dataset:
        offsets = (dataset.ExtendedOffsetTable, dataset.ExtendedOffsetTableLengths)
    return generate_frames(dataset.PixelData, number_of_frames=frames, extended_offsets=offsets)


def _whole_number(dataset: Any, keyword: str, default: int) -> int:
    return int(dataset.get(keyword, default) or default)
