"""Ranges of the numbers in a config, written at the field: `num_filters: Count = 256`."""

import math
import typing
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple


class BrokenRules(ValueError):
    """Broken rules, one argument each."""

    def __str__(self) -> str:
        return "; ".join(self.args)


class Range(NamedTuple):
    """An interval in mathematical notation: `Range("(0, 1]")` excludes 0."""

    interval: str

    def __contains__(self, value: object) -> bool:
        low, high = map(float, self.interval[1:-1].split(","))
        number = typing.cast(float, value)
        above = number > low or (number == low and self.interval[0] == "[")
        below = number < high or (number == high and self.interval[-1] == "]")
        return above and below

    def __str__(self) -> str:
        low, high = self.interval[1:-1].split(",")
        if float(high) < math.inf:
            return f"in {self.interval}"
        return f"above {low}" if self.interval[0] == "(" else f"{low} or more"


Count = Annotated[int, Range("(0, inf)")]
NaturalNumber = Annotated[int, Range("[0, inf)")]
Positive = Annotated[float, Range("(0, inf)")]
NotNegative = Annotated[float, Range("[0, inf)")]
Share = Annotated[float, Range("[0, 1]")]


def check(config: Any, *rules: tuple[bool, str]) -> None:
    """Raises BrokenRules with every field that is out of range and every broken rule.

    Serves as `__post_init__` of a dataclass, or is called there. Each number of a tuple must be in
    range; null and strings are in every range.

    Args:
        config: the dataclass.
        *rules: whether a rule holds, and the message if it does not.
    """
    broken = [
        f"{name} must be {allowed}, got {list(value) if isinstance(value, tuple) else value}"
        for name, hint in typing.get_type_hints(type(config), include_extras=True).items()
        for value in [getattr(config, name)]
        for allowed in _ranges(hint)
        if any(number not in allowed for number in _numbers(value))
    ]
    broken += [text for holds, text in rules if not holds]
    if broken:
        raise BrokenRules(*broken)


def _ranges(hint: Any) -> Iterator[Range]:
    """Yields the ranges within a type such as `tuple[Share, ...] | None`."""
    for part in typing.get_args(hint):
        if isinstance(part, Range):
            yield part
        else:
            yield from _ranges(part)


def _numbers(value: Any) -> Iterator[float]:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, int | float):
            yield item
