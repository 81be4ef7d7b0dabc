"""Measures the compressed metadata of PNG files, which libpng inflates and keeps unasked.

A few megabytes of text chunks can stand for gigabytes.
"""

import struct
import zlib
from collections.abc import Iterator

_MAX_RATIO = 1032  # of deflate: a match of 258 bytes in two bits
_PIECE = 2**14  # compressed bytes at a time, which inflate to 17 MB at most


def inflates_beyond(encoded: bytes, limit: int) -> bool:
    """Whether the text and colour profiles of a PNG inflate to more than `limit` bytes in all.

    Inflates only what could: nothing where a file has less than `limit` / 1032 bytes of them.
    """
    streams = list(_compressed(encoded))
    if _MAX_RATIO * sum(map(len, streams)) <= limit:
        return False
    total = 0
    for size in (size for stream in streams for size in _inflated_sizes(stream)):
        total += size
        if total > limit:
            return True
    return False


def _inflated_sizes(stream: bytes) -> Iterator[int]:
    """Yields how many bytes the pieces of a zlib stream stand for; the most, of a broken one."""
    inflater = zlib.decompressobj()
    for start in range(0, len(stream), _PIECE):
        piece = stream[start : start + _PIECE]
        try:
            yield len(inflater.decompress(piece))
        except zlib.error:
            yield _MAX_RATIO * len(piece)
            return
        if inflater.eof:
            return


def _compressed(encoded: bytes) -> Iterator[bytes]:
    """Yields the zlib streams of zTXt, iTXt and iCCP (PNG specification, 11.3.2.3 and 11.3.3)."""
    position, kind = 8, b""
    while kind != b"IEND" and position + 8 <= len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, position)
        if kind in (b"zTXt", b"iTXt", b"iCCP"):
            _, _, rest = encoded[position + 8 : position + 8 + length].partition(b"\0")
            if kind != b"iTXt":
                yield rest[1:]  # after the method
            elif rest[:1] == b"\1":  # compressed; a language and a translated keyword follow
                yield rest[2:].split(b"\0", 2)[-1]
        position += 12 + length
