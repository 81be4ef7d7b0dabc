"""The sizes that an AVIF file states: those of its boxes, and those of the AV1 data in it.

libavif decodes AV1 data at the size of their sequence header (AV1 specification, 5.5) and scales
the result to what the boxes say.
"""

import re
import struct
from collections.abc import Iterator

from tpudet.trainkit.images.iso_boxes import boxes

_SEQUENCE_HEADER = 1  # type of OBU
_HAS_EXTENSION, _HAS_SIZE = 4, 2  # flags in the first byte of an OBU
_MAX_LOCATIONS = 2**16  # bytes; a grid of 256 images has some 5,000
_MAX_SEQUENCE_HEADER = 1024  # bytes; 32 operating points take 400
_MAX_TRACKS = 16  # colours and alpha are one each
_IN_FILE = 0  # the data of an item; elsewhere they are in a box of their own
_Sizes = Iterator[tuple[int, int]]  # height, width


def avif_sizes(encoded: bytes) -> _Sizes:
    """Yields the sizes of all images and tracks.

    Raises:
        struct.error: the file is cut off, or hides where its images are.
    """
    for kind, start, end in boxes(encoded):
        if kind == b"meta":
            for found in re.finditer(b"ispe", encoded[start:end]):
                width, height = struct.unpack_from(">II", encoded, start + found.end() + 4)
                yield height, width
            for stream in _item_streams(encoded, start + 4, end):
                yield from sequence_sizes(stream)
        elif kind == b"moov":
            yield from _track_sizes(encoded, start, end)


def _track_sizes(encoded: bytes, start: int, end: int) -> _Sizes:
    """Sizes of all tracks and of their first images, the ones that are decoded."""
    for found in re.finditer(b"tkhd", encoded[start:end]):
        head = start + found.start() - 4
        (size,) = struct.unpack_from(">I", encoded, head)
        # 16 bits of whole pixels, 16 of fractions; a track of sound has none.
        width, height = struct.unpack_from(">HxxHxx", encoded, head + size - 8)
        if height or width:
            yield height, width
    chunks = list(re.finditer(b"stco|co64", encoded[start:end]))
    if len(chunks) > _MAX_TRACKS:
        raise struct.error("too many tracks")
    for found in chunks:
        entry = start + found.end() + 8  # behind version, flags and number of entries
        (offset,) = struct.unpack_from(">I" if found[0] == b"stco" else ">Q", encoded, entry)
        yield from sequence_sizes(encoded[offset:])


def _item_streams(encoded: bytes, start: int, end: int) -> Iterator[bytes]:
    """Yields the data of every item (ISO/IEC 14496-12, 8.11.3)."""
    inner = list(boxes(encoded, start, end))
    locations = [(start, end) for kind, start, end in inner if kind == b"iloc"]
    if not locations:
        return
    if len(locations) > 1 or locations[0][1] - locations[0][0] > _MAX_LOCATIONS:
        raise struct.error("locations of too many images")
    places = {kind: (start, end) for kind, start, end in inner if kind == b"idat"}
    view, left = memoryview(encoded), 2 * len(encoded)  # items do not overlap
    for method, extents in _locations(_Bits(encoded[slice(*locations[0])])):
        begin, stop = (0, len(encoded)) if method == _IN_FILE else places.get(b"idat", (0, 0))
        parts = [
            view[begin + offset : min(begin + offset + length, stop) if length else stop]
            for offset, length in extents
        ]
        left -= sum(map(len, parts))
        if left < 0:
            raise struct.error("locations of more images than there is room for")
        yield b"".join(parts)


def _locations(bits: "_Bits") -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Yields for each item where its data are, and offset and length of its extents."""
    version = bits.take(8)
    bits.take(24)
    offset_bits, length_bits, base_bits, index_bits = (8 * bits.take(4) for _ in range(4))
    id_bits = 16 if version < 2 else 32
    for _ in range(bits.take(id_bits)):
        bits.take(id_bits)
        method = bits.take(16) & 15 if version else _IN_FILE
        bits.take(16)  # the file of the data, which is this one
        base = bits.take(base_bits)
        extents = []
        for _ in range(bits.take(16)):
            bits.take(index_bits if version else 0)
            extents.append((base + bits.take(offset_bits), bits.take(length_bits)))
        yield method, extents


def sequence_sizes(stream: bytes) -> _Sizes:
    """Yields height and width from each sequence header of AV1 data, the contents of an item.

    What is no AV1 ends the search at once: other items begin with a byte of 0, or with text.

    Raises:
        struct.error: a sequence header is cut off.
    """
    position = 0
    while position < len(stream):
        head = stream[position]
        position += 2 if head & _HAS_EXTENSION else 1
        size = len(stream) - position
        if head & _HAS_SIZE:
            size, position = _leb128(stream, position)
        if head >> 3 & 15 == _SEQUENCE_HEADER and not head & 0x80:
            yield _parse_sequence_header(
                _Bits(stream[position : position + min(size, _MAX_SEQUENCE_HEADER)])
            )
        position += size


def _leb128(stream: bytes, position: int) -> tuple[int, int]:
    """Reads a number of up to 8 bytes, lowest first; returns it and where it ends."""
    value = 0
    for place, byte in enumerate(stream[position : position + 8]):
        value |= (byte & 127) << 7 * place
        if not byte & 128:
            return value, position + place + 1
    raise struct.error("a number without an end")


class _Bits:
    """Reads numbers of a few bits, the highest first."""

    def __init__(self, data: bytes) -> None:
        self._data = int.from_bytes(data, "big")
        self._left = 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise struct.error("it ends within a number")
        return self._data >> self._left & ((1 << count) - 1)

    def skip_if(self, *counts: int) -> bool:
        """Reads a flag, and skips numbers if it is set."""
        flag = bool(self.take(1))
        for count in counts if flag else ():
            self.take(count)
        return flag


def _parse_sequence_header(bits: _Bits) -> tuple[int, int]:
    """Returns height and width by the AV1 specification, 5.5."""
    bits.take(3 + 1)  # profile, still picture
    if bits.take(1):  # reduced header: only a level
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    width = bits.take(width_bits) + 1
    return bits.take(height_bits) + 1, width


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.take(1):  # timing
        bits.take(32 + 32)
        if bits.take(1):  # a number whose length is told by zeros
            zeros = 0
            while not bits.take(1):
                zeros += 1
            bits.take(min(zeros, 32) if zeros < 32 else 0)
        if bits.take(1):  # decoder model
            delay_bits = bits.take(5) + 1
            bits.take(32 + 5 + 5)
    has_display_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits:
            bits.skip_if(delay_bits, delay_bits, 1)
        if has_display_delay:
            bits.skip_if(4)
