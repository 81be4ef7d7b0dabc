"""The boxes of ISO files, of which AVIF and JPEG 2000 are made (ISO/IEC 14496-12, 4.2)."""

import struct
from collections.abc import Iterator


def boxes(
    encoded: bytes, position: int = 0, end: int | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Yields kind, start and end of the contents of the boxes one after another.

    Args:
        encoded: the file.
        position: where the first of them begins.
        end: of the last; None for that of the file.

    Raises:
        struct.error: the file ends within the size of a box.
    """
    stop = len(encoded) if end is None else end
    while position + 8 <= stop:
        size, kind = struct.unpack_from(">I4s", encoded, position)
        start = position + 8
        if size == 1:  # the true one follows, in 8 bytes
            (size,) = struct.unpack_from(">Q", encoded, start)
            start += 8
        end_of_box = position + size if size else stop
        if end_of_box < start:
            return
        yield kind, start, end_of_box
        position = end_of_box
