"""An unpickler whose memory and time grow with the file that it reads, not with what it says."""

import pickle
import struct
from collections.abc import Iterable
from typing import IO, Any, ClassVar

from tpudet.trainkit.errors import shorten

_PLAIN = (str, bytes, bool, float, type(None))
_MAX_INTEGER_BITS = 64  # of keys; the digits of longer numbers take quadratic time
_SHOWN_VALUES = 9
_ENTRY_BYTES = 100  # of a dictionary
_SET_BYTES = 216  # an empty one, of a file's single byte
_SLACK = 1 << 26
_SHOWN_LETTERS = 100


class BoundedUnpickler(pickle._Unpickler):
    """The unpickler in Python, to derive from with a `find_class` that looks nothing up.

    That in C reserves memory for any number that a pickle calls a place in its memo, and both do so
    for the length of a bytearray, which here becomes bytes. Both hash whatever is a key: forty
    tuples, each twice in the next, have a hash of 2^40 steps. And both call a function as often as
    a few bytes ask for it, each time with a copy of the same long arguments.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        super().__init__(file, **options)
        self._file = file
        self._charged = 0

    def charge(self, num_bytes: int) -> None:
        """Counts memory that a copy takes, which a file must fill: it stores each text once.

        Raises:
            pickle.UnpicklingError: the copies take more than the file has been read so far.
        """
        self._charged += num_bytes
        if self._charged > _SLACK and self._charged > self._file.tell() + _SLACK:
            raise pickle.UnpicklingError("it copies a part of itself many times")

    def plain_items(self, items: Any = ()) -> Any:
        """Returns the items of a dictionary that a call makes, whose keys must be plain."""
        if not isinstance(items, dict | list | tuple):
            raise pickle.UnpicklingError(f"it makes a dictionary of {describe(items)}")
        self.charge(_ENTRY_BYTES * len(items))
        if not isinstance(items, dict):
            if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in items):
                raise pickle.UnpicklingError("it makes a dictionary of items that are not pairs")
            require_plain_keys(pair[0] for pair in items)
        return items

    def load_reduce(self) -> None:
        arguments = self.stack[-1]
        if not isinstance(arguments, tuple):
            raise pickle.UnpicklingError(f"it calls a function with {describe(arguments)}")
        self.charge(len(arguments))  # copied for the time of the call only
        super().load_reduce()

    def load_build(self) -> None:
        # Attributes of a method would go to the function of all unpicklers.
        if not hasattr(self.stack[-2], "__setstate__"):
            raise pickle.UnpicklingError(f"it changes attributes of {describe(self.stack[-2])}")
        super().load_build()

    def load_empty_set(self) -> None:
        self.charge(_SET_BYTES)
        super().load_empty_set()

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

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.EMPTY_SET[0]] = load_empty_set
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
