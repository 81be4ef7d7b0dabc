"""The errors of submissions: bad files, bad arguments, bad rows, in words."""

import re
from typing import NamedTuple

from tpudet.trainkit.errors import UserError

# Faults that a scan reports; the numbers are those of prediction_text.pxd.
TOKENS, NUMBER, SCORE, BOX, LABEL = 1, 2, 3, 4, 5
LARGEST = 1_000_000
NUM_SHOWN = 10
_TOKEN = re.compile(rb"[^ \t]+")


class SubmissionError(UserError):
    """A file that is not a submission, or arguments that contradict each other."""


class BadRow(NamedTuple):
    """A row that cannot be used."""

    path: str
    line: int  # 1-based
    reason: str


class BadRows(NamedTuple):
    """The first bad rows and the total number."""

    shown: list[BadRow]
    total: int

    def plus(self, other: "BadRows") -> "BadRows":
        """Both together, the first `NUM_SHOWN` shown."""
        return BadRows((self.shown + other.shown)[:NUM_SHOWN], self.total + other.total)

    def lines(self, indent: str) -> str:
        """A line per shown row, and how many more there are."""
        rows = [f"\n{indent}{row.path}, line {row.line}: {row.reason}" for row in self.shown]
        more = self.total - len(self.shown)
        return "".join(rows) + (f"\n{indent}… and {more} more" if more else "")

    def describe(self) -> str:
        """The summary of the rows left out; empty if there are none."""
        return f"\n  {self.total} bad rows left out:{self.lines('    ')}" if self.total else ""


NO_BAD_ROWS = BadRows([], 0)


class BadRowsError(UserError):
    """Rows that cannot be used, without --skip_bad."""

    def __init__(self, bad: BadRows):
        noun = "row" if bad.total == 1 else "rows"
        super().__init__(
            f"{bad.total} bad {noun}; --skip_bad leaves bad rows out and counts them:"
            + bad.lines("  ")
        )


def describe_fault(fault: int, row: bytes, position: int) -> str:
    """Describes a fault that a scan reported.

    Args:
        fault: one of the numbers above.
        row: the prediction string.
        position: of the fault in the row: of the wrong token, or of the label for BOX.
    """
    num_before = len(_TOKEN.findall(row[:position]))
    number = num_before // 6 + 1
    rest = _TOKEN.findall(row[position:])
    token = _shown(rest[0]) if rest else "nothing"
    place = f"prediction {number}"
    if fault == TOKENS:
        count = len(_TOKEN.findall(row))
        return (
            f"{count} tokens, and {count} is not a multiple of 6 (LABEL score x1 y1 x2 y2): a "
            f"token is missing or one too many, first seen at prediction {number}"
        )
    if fault == NUMBER:
        what = ("score", "x1", "y1", "x2", "y2")[num_before % 6 - 1]
        return f"{place}: {what} is {token}, which is not a number of at most ±{LARGEST}"
    if fault == SCORE:
        return f"{place}: the score is {token}; it must be in 0..1"
    if fault == BOX:
        x1, y1, x2, y2 = (part.decode("ascii", "replace") for part in rest[2:6])
        return f"{place}: x1 y1 x2 y2 = {x1} {y1} {x2} {y2}; x2 < x1 or y2 < y1"
    return (
        f"{place}: the label {token} is longer than 255 bytes or holds a quote, a comma or a "
        "control character"
    )


def _shown(token: bytes) -> str:
    text = token[:40].decode("utf-8", "replace")
    return repr(text + "…" if len(token) > 40 else text)
