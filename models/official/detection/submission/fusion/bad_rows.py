"""What can be wrong with a row of a submission, in words."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tpudet.trainkit.errors import UserError

# Faults that a scan finds; the numbers are those of prediction_text.pxd.
TOKENS, NUMBER, SCORE, BOX, LABEL = 1, 2, 3, 4, 5
LARGEST = 1_000_000
NUM_SHOWN = 10
_TOKEN = re.compile(rb"[^ \t]+")


class BadRow(NamedTuple):
    """A row that cannot be used."""

    path: str
    line: int  # 1-based
    reason: str


class BadRowsError(UserError):
    """Rows that cannot be used, and nobody asked to leave them out."""

    def __init__(self, rows: Sequence[BadRow], count: int):
        """Takes the first bad rows of each file and the number of all."""
        shown = "\n".join(f"  {row.path}, line {row.line}: {row.reason}" for row in rows)
        more = f"\n  … and {count - len(rows)} more" if count > len(rows) else ""
        noun = "row" if count == 1 else "rows"
        super().__init__(
            f"{count} bad {noun}; --skip_bad leaves bad rows out and counts them:\n{shown}{more}"
        )


def describe_fault(fault: int, row: bytes, position: int) -> str:
    """Says what a scan found.

    Args:
        fault: one of the numbers above.
        row: the prediction string.
        position: where in it the fault lies: at the token that is wrong, for BOX at the label.
    """
    num_before = len(_TOKEN.findall(row[:position]))
    number = num_before // 6 + 1
    rest = _TOKEN.findall(row[position:])
    token = _shown(rest[0]) if rest else "nothing"
    place = f"prediction {number}"
    if fault == TOKENS:
        count = len(_TOKEN.findall(row))
        return (
            f"{count} tokens, and {count} is no multiple of 6 (LABEL score x1 y1 x2 y2): a token "
            f"is missing or one too many, first seen at prediction {number}"
        )
    if fault == NUMBER:
        what = ("score", "x1", "y1", "x2", "y2")[num_before % 6 - 1]
        return f"{place}: {what} is {token}, which is no number of at most ±{LARGEST}"
    if fault == SCORE:
        return f"{place}: the score is {token}; it must lie in 0..1"
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
