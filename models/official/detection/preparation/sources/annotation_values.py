"""Reads the values of annotations, whatever type the program that wrote them gave them.

Ids come as 1, 1.0 (pandas columns with a gap), "1" and "0001"; sizes as "" or 0 where they are not
known; flags as "False" or NaN.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

from tpudet.trainkit.class_list import ClassEntry

_NO = frozenset(("", "0", "0.0", "false", "no", "nan", "none", "null"))
_INTEGER_DIGITS = 18  # of a 64-bit integer, whatever its digits
_YES = frozenset(("1", "1.0", "true", "yes"))


def read_id(value: object) -> str | None:
    """An id as text, the same for 1, 1.0, "1" and "1.0"; None for what is not an id."""
    if isinstance(value, bool):  # an int to Python
        return None
    if isinstance(value, str):
        whole, point, zeros = value.strip().partition(".")
        return whole if point and whole.isdecimal() and not zeros.strip("0") else value.strip()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    return str(value) if isinstance(value, int) and abs(value) < 2**63 else None


def as_integers(ids: Sequence[str]) -> list[int] | None:
    """The ids as integers, where all of them are decimal digits and fit in 64 bits; else None."""
    are_numbers = all(text.isdecimal() and len(text) <= _INTEGER_DIGITS for text in ids)
    return list(map(int, ids)) if are_numbers else None


def read_number(value: object) -> float | None:
    """A number, also one that is written as text; None for what is none or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def read_flag(value: object) -> bool | None:
    """A flag; missing, blank and NaN are no. None for what is not a flag."""
    if isinstance(value, list | dict):
        return None
    text = str(value).strip().lower()
    return True if text in _YES else False if text in _NO else None


def read_size(value: object) -> float | None:
    """Pixels of a side, NaN where 0, -1, null or a blank says that it is not known."""
    number = math.nan if value is None or value == "" else read_number(value)
    return number if number is None or 0 < number < math.inf else math.nan


def sorted_classes(entries: Iterable[ClassEntry]) -> tuple[ClassEntry, ...]:
    """Sorts classes by identifier: numbers by their value, then text."""
    return tuple(sorted(entries, key=_by_number))


def _by_number(entry: ClassEntry) -> tuple[bool, int, str, str]:
    is_number = entry.identifier.isdecimal()
    digits = entry.identifier.lstrip("0") if is_number else ""  # int() refuses thousands
    return not is_number, len(digits), digits, entry.identifier
