"""An unpickler whose memory grows with the file that it reads, not with the numbers in it."""

import pickle
import struct
from typing import Any, ClassVar


class BoundedUnpickler(pickle._Unpickler):
    """The unpickler in Python, to derive from with a `find_class` that looks nothing up.

    That in C reserves memory for any number that a pickle calls a place in its memo, and both do so
    for the length of a bytearray, which here becomes bytes.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        values = self.read(length)
        if len(values) < length:
            raise pickle.UnpicklingError(f"it ends within {length:,} bytes")
        self.append(values)

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
