"""Integers of seven bits per byte, lowest first, as LevelDB and Thrift store them."""

_MAX_SHIFT = 63  # of numbers of 64 bits


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Returns the number at an offset, and the offset after it.

    Raises:
        IndexError: the data end within it.
        ValueError: it has more than 64 bits.
    """
    value = shift = 0
    while shift <= _MAX_SHIFT:
        byte = data[offset]
        value |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return value, offset
    raise ValueError("a number in it has more than 64 bits")
