"""Integers of seven bits a byte, lowest first, as LevelDB and Thrift store them."""

_MAX_SHIFT = 63  # of numbers of 64 bits


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number at a place, and the place behind it.

    Raises:
        IndexError: the data end within it.
        ValueError: it has more than 64 bits.
    """
    value = shift = 0
    while shift <= _MAX_SHIFT:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("a number in it has more than 64 bits")
