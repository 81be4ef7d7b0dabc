"""Ranges at the fields of a dataclass."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from tpudet.trainkit.config.decode import ConfigError, decode
from tpudet.trainkit.config.ranges import Count, Positive, Range, Share, check
from tpudet.trainkit.config.yaml_tree import parse_tree


@dataclass(frozen=True, kw_only=True)
class Grid:
    rows: Count = 3
    columns: Count | None = None
    overlap: Annotated[float, Range("[0, 1)")] = 0.5
    shares: tuple[Share, ...] = ()
    step: Positive | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        check(self, (self.rows != 13, "thirteen rows bring bad luck"))


@pytest.mark.parametrize(
    ("interval", "inside", "outside", "words"),
    [
        ("(0, 1]", [1e-9, 0.5, 1], [0, -1, 1.001], "in (0, 1]"),
        ("[0, 1)", [0, 0.999], [1, -1e-9], "in [0, 1)"),
        ("(0, inf)", [1e-9, 1e9], [0, -1, math.inf, math.nan], "above 0"),
        ("[1, inf)", [1, 1e9], [0.999], "1 or more"),
    ],
)
def test_an_interval_is_as_in_mathematics(
    interval: str, inside: list[float], outside: list[float], words: str
) -> None:
    assert all(number in Range(interval) for number in inside)
    assert not any(number in Range(interval) for number in outside)
    assert str(Range(interval)) == words


def test_every_field_out_of_its_range_is_told_at_once() -> None:
    with pytest.raises(ValueError, match="rows must be above 0, got 0") as error:
        Grid(rows=0, columns=-2, overlap=1.0, shares=(0.5, 1.5), step=-1.0)
    assert str(error.value).split("; ") == [
        "rows must be above 0, got 0",
        "columns must be above 0, got -2",
        "overlap must be in [0, 1), got 1.0",
        "shares must be in [0, 1], got [0.5, 1.5]",
        "step must be above 0, got -1.0",
    ]
    with pytest.raises(ValueError, match="^thirteen rows bring bad luck$"):
        Grid(rows=13)


def test_null_and_words_are_in_every_range() -> None:
    assert Grid(columns=None, step="auto").columns is None


def test_a_file_is_told_its_place() -> None:
    with pytest.raises(ConfigError, match=r"a.yaml:1: Grid: rows must be above 0, got -5"):
        decode(Grid, parse_tree("rows: -5", "a.yaml"))
