"""An unpickler whose memory and time grow with the file that it reads, not with what it says."""

import pickle
import struct
from collections.abc import Iterable
from typing import Any, ClassVar

from tpudet.trainkit.errors import shorten

_PLAIN = (str, bytes, bool, float, type(None))
_MAX_INTEGER_BITS = 64  # of keys; the digits of longer numbers take quadratic time
_SHOWN_VALUES = 9
_SHOWN_LETTERS = 100


class BoundedUnpickler(pickle._Unpickler):
    """The unpickler in Python, to derive from with a `find_class` that looks nothing up.

    That in C reserves memory for any number that a pickle calls a place in its memo, and both do so
    for the length of a bytearray, which here becomes bytes. Both hash whatever is a key: forty
    tuples, each twice in the next, have a hash of 2^40 steps.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        values = self.read(length)
        if len(values) < length:
            raise pickle.UnpicklingError(f"it ends within {length:,} bytes")
        self.append(values)

    def load_setitem(self) -> None:
        require_plain_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        require_plain_keys(self.stack[::2])  # all since the last mark
        super().load_setitems()

    def load_dict(self) -> None:
        require_plain_keys(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        require_plain_keys(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        require_plain_keys(self.stack)
        super().load_frozenset()

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.FROZENSET[0]] = load_frozenset


def require_plain_keys(keys: Iterable[Any]) -> None:
    """Raises pickle.UnpicklingError if a key of a dictionary or set is not text or a number."""
    for key in keys:
        is_integer = type(key) is int and key.bit_length() <= _MAX_INTEGER_BITS
        if not is_integer and type(key) not in _PLAIN:
            raise pickle.UnpicklingError(
                f"it has {describe(key)} as key of a dictionary; only text and numbers are allowed"
            )


def plain_items(items: Any = ()) -> Any:
    """Returns the items of a dictionary that a call makes, whose keys must be plain."""
    if not isinstance(items, dict):
        items = [tuple(pair) for pair in items]
        require_plain_keys(pair[0] for pair in items)
    return items


def describe(value: Any) -> str:
    """A value of a pickle, for a message: of what may take for ever to print, its type only."""
    if type(value) is tuple:
        inner = [_describe_plain(part) for part in value[:_SHOWN_VALUES]]
        more = ["…"] if len(value) > _SHOWN_VALUES else []
        return f"({', '.join(inner + more)}{',' if len(value) == 1 else ''})"
    return _describe_plain(value)


def _describe_plain(value: Any) -> str:
    if type(value) is int:
        is_long = value.bit_length() > 2 * _MAX_INTEGER_BITS
        return f"an integer of {value.bit_length():,} bits" if is_long else str(value)
    if type(value) in (str, bytes):
        return shorten(repr(value[: 2 * _SHOWN_LETTERS]), _SHOWN_LETTERS)
    return repr(value) if type(value) in _PLAIN else f"a {type(value).__name__.strip('_')}"
